"""The deployments of nbrl: what a schedule, a worker or Prefect's form can start, and how they are registered."""

import asyncio
from pathlib import Path
from typing import Any, Literal

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from pydantic import BaseModel, Field

from nbrl.agent.text import check_address
from nbrl.flows import deployed
from nbrl.flows.clean import CleanOrder
from nbrl.flows.deployed import PrepareOrder, TrainOrder
from nbrl.flows.evaluation_request import ROOT, EvaluationRequest, check_root
from nbrl.infra.closed import ClosedModel
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.runs.recipes import load, trusted_config
from nbrl.tasks.runs.run import check_continues, checked_name, find_run, known_run

Kind = Literal["train", "evaluate", "prepare", "clean"]
NIGHTLY, WEEKLY = "0 2 * * *", "0 4 * * sun"
TAG = "nbrl"
FIELDS = 5  # of a cron line


class DeployOptions(ClosedModel):
    """What is to be deployed; without `kind`, the training of `run`, its evaluation and the cleaning of its storage."""

    kind: Kind | None = None
    recipe: str = ""
    run: str = ""
    cron: str = ""
    out: str = ""
    root: str = ROOT
    overrides: tuple[str, ...] = ()
    home: str = ".nbrl"
    trust: bool = Field(False, description="trust what the run's settings reach now; another value later is refused")
    webhook: str = Field("", description="where failures and worse evaluations are reported by POST")


def deployments_of(options: DeployOptions) -> list[RunnerDeployment]:
    """Return the deployments of a options. Raises ConfigError for what could not run, and for options that would do nothing."""
    _check_webhook(options.webhook)
    if options.kind == "prepare":
        return [_prepare(options)]
    if options.out:
        raise ConfigError("--out is the folder of a preparation; leave it out, or name the kind: prepare")
    config = load(options.recipe, options.overrides) if options.recipe else None
    if config is not None:
        check_root(options.root, config)
    root = config.storage.root if config else options.root
    storage = Storage(StorageSettings(root=root))
    if options.kind == "clean":
        if options.overrides and not options.recipe:
            raise ConfigError("--set changes nothing in what is cleaned; each run's own settings say what stays")
        if options.run:
            known_run(storage, options.run)
        elif not storage.list(RUNS):
            raise ConfigError(f"there is no run in {root} to clean; name the storage with --root")
        return [_clean(options, root)]
    if not options.run:
        raise ConfigError("name the run with --run: a schedule continues one run, and an evaluation takes its newest checkpoint")
    train = TrainOrder(run=checked_name(options.run), recipe=options.recipe, overrides=options.overrides, root=root)
    if options.kind == "evaluate":
        evaluate = EvaluationRequest(model=options.run, root=root, overrides=options.overrides)
        trusted_config(storage, options.run, options.overrides, options.trust)
        return [_deployment(deployed.evaluate, options.run, {"order": evaluate}, options.cron or NIGHTLY, [options.run])]
    evaluate = EvaluationRequest(model=options.run, root=root)
    if config is None:
        config = trusted_config(storage, options.run, options.overrides, options.trust)
    if (known := find_run(storage, options.run)) is not None:
        check_continues(storage, known, config)
    if options.kind == "train":
        return [_deployment(deployed.train, options.run, {"order": train}, options.cron, [options.run])]
    return [
        _deployment(deployed.train, options.run, {"order": train}, options.cron, [options.run]),
        _deployment(deployed.evaluate, options.run, {"order": evaluate}, NIGHTLY, [options.run]),
        _clean(options.model_copy(update={"cron": ""}), root),
    ]


def _check_webhook(url: str) -> None:
    try:
        if url:
            check_address(url)
    except ValueError as error:
        raise ConfigError(f"--webhook {url!r}: {error}") from error


def _prepare(options: DeployOptions) -> RunnerDeployment:
    if not options.recipe or not options.out:
        raise ConfigError("a preparation needs --recipe FILE.yaml and --out FOLDER")
    if options.run:
        raise ConfigError("--run changes nothing in a preparation; leave it out")
    load_preparation(Path(options.recipe), options.overrides)
    folder = expanded(options.out).absolute().resolve()
    if not folder.name:
        raise ConfigError(f"--out {options.out}: name a folder of its own for what is prepared")
    order = PrepareOrder(recipe=Path(options.recipe), folder=folder, overrides=options.overrides, home=options.home)
    return _deployment(deployed.prepare, folder.name, {"order": order}, options.cron or WEEKLY, [])


def _clean(options: DeployOptions, root: str) -> RunnerDeployment:
    order = CleanOrder(root=root, runs=(options.run,) if options.run and options.kind == "clean" else ())
    return _deployment(deployed.clean, options.run if order.runs else "all-runs", {"order": order}, options.cron or WEEKLY, [])


def _deployment(flow: Any, name: str, orders: dict[str, BaseModel], cron: str, tags: list[str]) -> RunnerDeployment:
    """One deployment, of which one flow run goes on at a time: one that starts meanwhile is cancelled, in words."""
    _check_cron(cron)
    return RunnerDeployment.from_flow(
        flow,
        name,
        cron=cron or None,
        parameters={name: order.model_dump(mode="json", exclude_unset=True) for name, order in orders.items()},
        tags=[TAG, *tags],
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _check_cron(cron: str) -> None:
    """Raises ConfigError for other than five fields, of which Prefect takes a sixth for seconds, and for what is never due."""
    if not cron:
        return
    if len(cron.split()) != FIELDS:
        raise _no_schedule(cron, f"it has {len(cron.split())} fields")
    from prefect.server.schemas.schedules import CronSchedule  # takes a second

    try:
        asyncio.run(CronSchedule(cron=cron).get_dates(1))
    except ValueError as error:  # ValidationError is one
        raise _no_schedule(cron, "it is never due, or has a field that is none") from error


def _no_schedule(cron: str, why: str) -> ConfigError:
    return ConfigError(
        f"--cron {cron!r} is no schedule ({why}); give five fields (minute, hour, day, month, weekday), such as {NIGHTLY!r} for "
        "every night at two"
    )
