"""The deployments of nbrl: what a schedule, a worker or Prefect's form can start, and how they are registered."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import httpx
from prefect import get_client
from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.deployments.runner import EntrypointType, RunnerDeployment
from prefect.events import CallWebhook, EventTrigger, Posture
from prefect.exceptions import ObjectNotFound
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.agent.http.address import check_address
from nbrl.flows import deployed
from nbrl.flows.clean import CleanOrder
from nbrl.flows.deployed import PrepareOrder, TrainOrder
from nbrl.flows.events import WORSE
from nbrl.flows.order import ROOT, Order
from nbrl.infra import prefect_server
from nbrl.infra.errors import ServerError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import RUNS
from nbrl.tasks.prepare.recipe import load as load_preparation
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import checked_name, known_run
from nbrl.tasks.services.restarts import first_line

Kind = Literal["train", "evaluate", "prepare", "clean"]
POOL = re.compile(r"\w[\w.-]*")
NIGHTLY, WEEKLY = "0 2 * * *", "0 4 * * sun"
TAG = "nbrl"
FAILED = {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}


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
    webhook: str = Field("", description="where failures and worse evaluations are reported by POST")


def wished(wish: Wish) -> list[RunnerDeployment]:
    """The deployments of a wish. Raises ConfigError for what could not run."""
    _check_webhook(wish.webhook)
    if wish.kind == "prepare":
        return [_prepare(wish)]
    root = load(wish.recipe, wish.overrides).storage.root if wish.recipe else wish.root
    if wish.kind == "clean":
        if wish.run:
            known_run(Storage(StorageSettings(root=root)), wish.run)
        elif not Storage(StorageSettings(root=root)).list(RUNS):
            raise ConfigError(f"there is no run in {root} to clean; name the storage with --root")
        return [_clean(wish, root)]
    if not wish.run:
        raise ConfigError("name the run with --run: a schedule continues one run, and an evaluation takes its newest checkpoint")
    checked_name(wish.run)
    if not wish.recipe or wish.kind == "evaluate":
        known_run(Storage(StorageSettings(root=root)), wish.run)
    train = TrainOrder(run=wish.run, recipe=wish.recipe, overrides=wish.overrides, root=root)
    evaluate = Order(model=wish.run, root=root)
    if wish.kind == "train":
        return [_deployment(deployed.train, wish.run, {"order": train}, wish.cron, [wish.run])]
    if wish.kind == "evaluate":
        return [_deployment(deployed.evaluate, wish.run, {"order": evaluate}, wish.cron or NIGHTLY, [wish.run])]
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
    load_preparation(Path(wish.recipe), wish.overrides)
    order = PrepareOrder(recipe=Path(wish.recipe), folder=Path(wish.out), overrides=wish.overrides, home=wish.home)
    return _deployment(deployed.prepare, Path(wish.out).name, {"order": order}, wish.cron or WEEKLY, [])


def _clean(wish: Wish, root: str) -> RunnerDeployment:
    order = CleanOrder(root=root, runs=(wish.run,) if wish.run and wish.kind == "clean" else ())
    return _deployment(deployed.clean, wish.run if order.runs else "all-runs", {"order": order}, wish.cron or WEEKLY, [])


def _deployment(flow: Any, name: str, orders: dict[str, BaseModel], cron: str, tags: list[str]) -> RunnerDeployment:
    """One deployment, of which one flow run goes on at a time: one that starts meanwhile is cancelled, in words."""
    try:
        return RunnerDeployment.from_flow(
            flow,
            name,
            cron=cron or None,
            parameters={name: order.model_dump(mode="json", exclude_unset=True) for name, order in orders.items()},
            tags=[TAG, *tags],
            concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW),
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
    except (ValidationError, ValueError) as error:
        if not cron:
            raise
        raise ConfigError(
            f"--cron {cron!r} is no schedule; give five fields (minute, hour, day, month, weekday), such as {NIGHTLY!r} for "
            "every night at two"
        ) from error


async def register(deployments: list[RunnerDeployment], pool: str, folder: Path) -> str:
    """Register the deployments at a work pool, which is created as one of processes if there is none; returns its type.

    Processes start in `folder`, in which relative paths of recipes and storages are looked for. Raises ConfigError for a name
    that no pool can have.
    """
    if not POOL.fullmatch(pool):
        raise ConfigError(f"--pool {pool!r} is no name of a work pool: give letters, digits, '.', '_' and '-'")
    async with get_client() as client:
        kind = await _pool(client, pool)
        for each in deployments:
            each.work_pool_name = pool
            each.job_variables = {"env": prefect_server.CLIENT}
            if kind == "process":
                each.job_variables["working_dir"] = str(folder)
            await apply(client, each)
    return kind


@contextmanager
def answered() -> Iterator[None]:
    """Raises ServerError, in a sentence, for what Prefect's server refuses or does not answer."""
    try:
        yield
    except httpx.HTTPError as error:
        raise ServerError(
            f"Prefect's server did not take this: {first_line(error)}; look whether PREFECT_API_URL is its address and "
            "PREFECT_API_KEY or PREFECT_API_AUTH_STRING what it asks for"
        ) from error


async def apply(client: PrefectClient, deployment: RunnerDeployment) -> None:
    """Create the deployment, or change it to what it shall be; one without a schedule loses the one that it had."""
    identity = await deployment.aapply()
    if not deployment.schedules:
        for schedule in await client.read_deployment_schedules(identity):
            await client.delete_deployment_schedule(identity, schedule.id)


async def _pool(client: PrefectClient, name: str) -> str:
    try:
        return (await client.read_work_pool(name)).type
    except ObjectNotFound:
        return (await client.create_work_pool(WorkPoolCreate(name=name, type="process"))).type


async def report_to(url: str) -> None:
    """Have Prefect POST to `url` when a flow run of nbrl failed, and when an evaluation was worse than the champion's."""
    block = await Webhook(url=url).asave("nbrl-reports", overwrite=True)
    related = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{TAG}"}
    failed = EventTrigger(expect=FAILED, match_related=related, posture=Posture.Reactive, threshold=1, within=timedelta(0))
    worse = EventTrigger(expect={WORSE}, posture=Posture.Reactive, threshold=1, within=timedelta(0))
    triggers = {
        "nbrl: a flow run failed": (
            failed,
            '{"flow_run": {{ flow_run.name | tojson }}, "state": {{ flow_run.state.message | tojson }}}',
        ),
        "nbrl: an evaluation is worse than the champion's": (
            worse,
            '{"evaluation": {{ event.resource.name | tojson }}, "success": {{ event.payload.success }}, '
            '"champion": {{ event.payload.champion }}}',
        ),
    }
    async with get_client() as client:
        for name, (trigger, payload) in triggers.items():
            automation = Automation(
                name=name, trigger=trigger, actions=[CallWebhook(block_document_id=block, payload=payload)], tags=[TAG]
            )
            for earlier in await client.read_automations_by_name(name):
                await client.delete_automation(earlier.id)
            await automation.acreate()
