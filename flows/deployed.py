"""The flows as a schedule, a worker or Prefect's own form starts them: each in a fresh process, with one model as its parameter.

Imported by Prefect's engine, it sets what libraries read before any of them is imported.
"""

from nbrl.infra import variables
from nbrl.infra.paths import expanded

variables.set_here()

# ruff: noqa: E402
import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import State, flow, get_client
from prefect.runtime import flow_run
from prefect.states import Cancelled
from pydantic import Field

from nbrl.flows import clean as cleaning
from nbrl.flows import evaluate as evaluation
from nbrl.flows import nightly as nights
from nbrl.flows import prepare as preparation
from nbrl.flows import train as training
from nbrl.flows.attempts import given_up, retried
from nbrl.flows.display.terminal import say
from nbrl.flows.evaluation_request import EvaluationRequest, check_root
from nbrl.flows.upkeep import kept_true, label
from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import HeldError
from nbrl.infra.home import HOME, ROOT
from nbrl.infra.process.identity import end_with_parent
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import StoppedError
from nbrl.tasks.prepare.preflight import check, load
from nbrl.tasks.runs.changes import DIFFERING, Changes, as_overrides
from nbrl.tasks.runs.preflight import preflight, prepared
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import trusted_config
from nbrl.tasks.runs.run import checked_name
from nbrl.tasks.services.restarts import curable, first_line

P = ParamSpec("P")
T = TypeVar("T")
END_S = 30.0  # for services


class TrainOrder(ClosedModel):
    """A run to begin or to continue."""

    run: str = Field(description="name of the run; an existing one is continued")
    recipe: str = Field("", description="name or path of a recipe; empty: the settings of the run's last start")
    settings: Changes = Field(Changes(), description=DIFFERING)
    overrides: tuple[str, ...] = Field((), description="further settings as KEY=VALUE, such as environments.NAME.train=64")
    root: str = Field(ROOT, description="storage root of the run, where there is no recipe")
    take_over: bool = Field(False, description="stop another process that trains this run, and continue here")

    def start(self) -> Prepared:
        """Raises ConfigError where the training could not be made."""
        name, overrides = checked_name(self.run), (*as_overrides(self.settings), *self.overrides)
        if self.recipe:
            start = prepared(self.recipe, overrides, "train", name)
            check_root(self.root, start.config)
            return start
        config = trusted_config(Storage(StorageSettings(root=self.root)), name, overrides, trust=False)
        return preflight(config, "train", name)


class PrepareOrder(ClosedModel):
    """A preparation of data to make or to continue."""

    recipe: Path = Field(description="a YAML file, such as examples/prepare/recipe.yaml")
    folder: Path = Field(description="folder to write to; an unfinished preparation in it is continued")
    overrides: tuple[str, ...] = Field((), description="settings as KEY=VALUE")
    home: str = Field(HOME, description="folder of the storage, and of the local servers' state and logs")


def visibly(work: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T | State[Any]]]:
    """Return the work as that of a flow run: what is no failure ends as Cancelled with a sentence, and only what can pass is
    tried again, by a flow run of its own.
    """

    @wraps(work)
    async def visible(*given: P.args, **options: P.kwargs) -> T | State[Any]:
        end_with_parent(END_S)  # Prefect asks a server that died with it for two minutes
        async with get_client() as client:
            run = await client.read_flow_run(flow_run.id)
            await label(client, run.id)
            if state := await given_up(client, run):
                return state
            async with kept_true(*filter(None, [run.deployment_id])):
                try:
                    return await work(*given, **options)
                except (HeldError, StoppedError) as error:
                    say(first_line(error))
                    return Cancelled(name="Skipped" if isinstance(error, HeldError) else "Stopped", message=first_line(error))
                except Exception as error:
                    say(str(error), "red")
                    if curable(error) and (state := await retried(client, run, error)):
                        return state
                    raise

    return visible


@flow(name="train", flow_run_name="train {order.run}", persist_result=False)
@visibly
async def train(order: TrainOrder) -> str:
    """Begin or continue a training run, as `nbrl train` and `nbrl resume` do."""
    start = await asyncio.to_thread(order.start)
    summary = await training.train.fn(start, order.run, take_over=order.take_over)
    return f"{summary.iterations} iterations"


@flow(name="evaluate", flow_run_name="evaluate {order.model}", persist_result=False)
@visibly
async def evaluate(order: EvaluationRequest, take_over: bool = False) -> str:
    """Evaluate a model, by default the newest checkpoint of a run, as `nbrl evaluate` does. One that is finished is found."""
    return (await evaluation.evaluate.fn(order, take_over)).name


@flow(name="prepare", flow_run_name="prepare {order.folder.name}", persist_result=False)
@visibly
async def prepare(order: PrepareOrder) -> str:
    """Make questions to train on, as `nbrl prepare` does."""
    settings, folder = load(order.recipe, order.overrides, order.home), expanded(order.folder).absolute()
    await asyncio.to_thread(check, settings, folder)
    await preparation.prepare.fn(settings, folder, order.home)
    return str(folder)


@flow(name="nightly", flow_run_name="nightly {order.recipe.stem} {order.night}", persist_result=False)
@visibly
async def nightly(order: nights.NightlyOrder) -> str:
    """Learn from questions of one's own use, and promote what is better; see docs/nightly.md."""
    report = await nights.nightly.fn(order)
    return "promoted" if report.promoted else "; ".join(report.reasons)


@flow(name="clean", flow_run_name="clean {order.root}", persist_result=False)
@visibly
async def clean(order: cleaning.CleanOrder) -> str:
    """Delete the checkpoints that no retention keeps, and what ended processes left."""
    return f"{len(await cleaning.clean.fn(order))} objects and checkpoints"
