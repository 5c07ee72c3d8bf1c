"""The deployments of nbrl: what a schedule, a worker or Prefect's form can start, and how they are registered."""

import asyncio
from pathlib import Path
from typing import Any, Literal

from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from pydantic import BaseModel, ConfigDict, Field

from nbrl.agent.http.client import check_address
from nbrl.flows import deployed
from nbrl.flows.clean import CleanOrder
from nbrl.flows.deployed import PrepareOrder, TrainOrder
from nbrl.flows.order import ROOT, Order, check_root
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


class Wish(BaseModel):
    """What is to be deployed; without `kind`, the training of `run`, its evaluation and the cleaning of its storage."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


def wished(wish: Wish) -> list[RunnerDeployment]:
    """The deployments of a wish. Raises ConfigError for what could not run, and for options that would do nothing."""
    _check_webhook(wish.webhook)
    if wish.kind == "prepare":
        return [_prepare(wish)]
    if wish.out:
        raise ConfigError("--out is the folder of a preparation; leave it out, or name the kind: prepare")
    config = load(wish.recipe, wish.overrides) if wish.recipe else None
    if config is not None:
        check_root(wish.root, config)
    root = config.storage.root if config else wish.root
    storage = Storage(StorageSettings(root=root))
    if wish.kind == "clean":
        if wish.overrides and not wish.recipe:
            raise ConfigError("--set changes nothing in what is cleaned; each run's own settings say what stays")
        if wish.run:
            known_run(storage, wish.run)
        elif not storage.list(RUNS):
            raise ConfigError(f"there is no run in {root} to clean; name the storage with --root")
        return [_clean(wish, root)]
    if not wish.run:
        raise ConfigError("name the run with --run: a schedule continues one run, and an evaluation takes its newest checkpoint")
    train = TrainOrder(run=checked_name(wish.run), recipe=wish.recipe, overrides=wish.overrides, root=root)
    if wish.kind == "evaluate":
        evaluate = Order(model=wish.run, root=root, overrides=wish.overrides)
        trusted_config(storage, wish.run, wish.overrides, wish.trust)
        return [_deployment(deployed.evaluate, wish.run, {"order": evaluate}, wish.cron or NIGHTLY, [wish.run])]
    evaluate = Order(model=wish.run, root=root)
    if config is None:
        config = trusted_config(storage, wish.run, wish.overrides, wish.trust)
    if (known := find_run(storage, wish.run)) is not None:
        check_continues(storage, known, config)
    if wish.kind == "train":
        return [_deployment(deployed.train, wish.run, {"order": train}, wish.cron, [wish.run])]
    return [
        _deployment(deployed.train, wish.run, {"order": train}, wish.cron, [wish.run]),
        _deployment(deployed.evaluate, wish.run, {"order": evaluate}, NIGHTLY, [wish.run]),
        _clean(wish.model_copy(update={"cron": ""}), root),
    ]


def _check_webhook(url: str) -> None:
    try:
        if url:
            check_address(url)
    except ValueError as error:
        raise ConfigError(f"--webhook {url!r}: {error}") from error


def _prepare(wish: Wish) -> RunnerDeployment:
    if not wish.recipe or not wish.out:
        raise ConfigError("a preparation needs --recipe FILE.yaml and --out FOLDER")
    if wish.run:
        raise ConfigError("--run changes nothing in a preparation; leave it out")
    load_preparation(Path(wish.recipe), wish.overrides)
    folder = expanded(wish.out).absolute().resolve()
    if not folder.name:
        raise ConfigError(f"--out {wish.out}: name a folder of its own for what is prepared")
    order = PrepareOrder(recipe=Path(wish.recipe), folder=folder, overrides=wish.overrides, home=wish.home)
    return _deployment(deployed.prepare, folder.name, {"order": order}, wish.cron or WEEKLY, [])


def _clean(wish: Wish, root: str) -> RunnerDeployment:
    order = CleanOrder(root=root, runs=(wish.run,) if wish.run and wish.kind == "clean" else ())
    return _deployment(deployed.clean, wish.run if order.runs else "all-runs", {"order": order}, wish.cron or WEEKLY, [])


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
