"""The deployments of nbrl: what a schedule, a worker or Prefect's form can start. prefect.yaml is written from them."""

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.schedules import Cron
from pydantic import BaseModel, Field

from nbrl.agent.text import check_address
from nbrl.flows import deployed
from nbrl.flows.clean import CleanOrder
from nbrl.flows.deployed import PrepareOrder, TrainOrder
from nbrl.flows.evaluation_request import EvaluationRequest, check_root
from nbrl.flows.nightly import NightlyOrder, check_held_out, settings_in
from nbrl.infra.closed import ClosedModel
from nbrl.infra.home import HOME, ROOT
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.runs.opening import continued
from nbrl.tasks.runs.recipes import load, trusted_config, with_home
from nbrl.tasks.runs.run import checked_name, known_run

Kind = Literal["train", "evaluate", "prepare", "clean", "nightly"]
USUAL = {"train": None, "evaluate": "0 2 * * *", "prepare": "0 4 * * sun", "clean": "0 4 * * sun", "nightly": "0 1 * * *"}
TAG, SLUG = "nbrl", "cron"  # a schedule that has a slug is changed in place
FIELDS = 5  # of a cron line


class DeployOptions(ClosedModel):
    """The options of a deployment; without `kind`, the training of `run`, its evaluation and the cleaning of its storage."""

    kind: Kind | None = None
    recipe: str = ""
    run: str = ""
    cron: str = ""
    out: str = ""
    root: str = ROOT
    overrides: tuple[str, ...] = ()
    home: str | None = Field(
        None, description="the home of what is started; the usual one, or that of the recipe or run, when not set"
    )
    trust: bool = Field(False, description="trust what the run's settings reach now; another value later is refused")
    webhook: str = Field("", description="where failures and worse evaluations are reported by POST")


def deployments_of(options: DeployOptions) -> list[RunnerDeployment]:
    """Return the deployments of the options. Raises ConfigError for what could not run, and for options that would do nothing."""
    _check_webhook(options.webhook)
    if options.kind == "prepare":
        return [_prepare(options)]
    if options.kind == "nightly":
        return [_nightly(options)]
    if options.out:
        raise ConfigError("--out is the folder of a preparation; leave it out, or name the kind: prepare")
    overrides = with_home(options.home, options.overrides)
    config = load(options.recipe, overrides) if options.recipe else None
    if config is not None:
        check_root(options.root, config)
    root, run, alone = config.storage.root if config else options.root, options.run, options.kind is not None
    storage = Storage(StorageSettings(root=root))
    if options.kind == "clean":
        if options.overrides and not options.recipe:
            raise ConfigError("--set changes nothing in what is cleaned; each run's own settings say what stays")
        if run:
            known_run(storage, run)
        elif not storage.list(RUNS):
            raise ConfigError(f"there is no run in {root} to clean; name the storage with --root")
        order = CleanOrder(root=root, runs=(run,) if run else ())
        return [deployment(deployed.clean, run or "all-runs", order, options.cron)]
    if not run:
        raise ConfigError("name the run with --run: a schedule continues one run, and an evaluation takes its newest checkpoint")
    train = TrainOrder(run=checked_name(run), recipe=options.recipe, overrides=overrides, root=root)
    if config is None or options.kind == "evaluate":
        config = trusted_config(storage, run, overrides, options.trust)
    made = []
    if options.kind != "evaluate":
        continued(storage, run, config)
        made.append(deployment(deployed.train, run, train, options.cron, run))
    if options.kind != "train":
        evaluate = EvaluationRequest(model=run, root=root, overrides=overrides if alone else with_home(options.home))
        made.append(deployment(deployed.evaluate, run, evaluate, options.cron if alone else "", run))
    if not alone:
        made.append(deployment(deployed.clean, "all-runs", CleanOrder(root=root)))
    return made


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
    load_preparation(Path(options.recipe), options.overrides, options.home or HOME)
    folder = expanded(options.out).absolute().resolve()
    if not folder.name:
        raise ConfigError(f"--out {options.out}: name a folder of its own for what is prepared")
    order = PrepareOrder(recipe=Path(options.recipe), folder=folder, overrides=options.overrides, home=options.home or HOME)
    return deployment(deployed.prepare, folder.name, order, options.cron)


def _nightly(options: DeployOptions) -> RunnerDeployment:
    if not options.recipe:
        raise ConfigError("nightly trainings need --recipe FILE.yaml: see docs/nightly.md")
    if options.run or options.out or options.overrides:
        raise ConfigError("--run, --out and --set change nothing in nightly trainings, whose file says all; leave them out")
    home, recipe = options.home or HOME, Path(options.recipe)
    settings = settings_in(recipe)
    config = load(settings.recipe, with_home(options.home, settings.settings))
    check_held_out(settings, config, load_preparation(settings.prepare, (), home))
    return deployment(deployed.nightly, settings.name, NightlyOrder(recipe=recipe, home=home), options.cron)


def deployment(flow: Any, name: str, order: BaseModel, cron: str = "", run: str = "") -> RunnerDeployment:
    """Return one deployment, of which one flow run goes on at a time: one that starts meanwhile is cancelled, in words.

    Without `cron` it is due when its flow usually is. Raises ConfigError if it would never be.
    """
    _check_cron(cron)
    return RunnerDeployment.from_flow(
        flow,
        name,
        schedules=[Cron(line, slug=SLUG)] if (line := cron or USUAL[flow.name]) else [],
        version=version("nbrl"),
        parameters={"order": order.model_dump(mode="json", exclude_unset=True)},
        tags=[TAG, run] if run else [TAG],
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
        f"--cron {cron!r} is no schedule ({why}); give five fields (minute, hour, day, month, weekday), such as '0 2 * * *' for "
        "every night at two"
    )
