"""An evaluation, whatever runs it: opened, answered and scored by the services of its caller, and finished.

`evaluate_here` runs one in this process, without Ray, Prefect or any server.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.evaluation_plan import EvaluationPlan
from nbrl.flows.logs import lines_kept
from nbrl.infra.errors import MissingError
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation import summary as summaries
from nbrl.tasks.evaluation.answers import finish
from nbrl.tasks.evaluation.deliver import has_mlflow, try_deliver, unusable_champion
from nbrl.tasks.evaluation.subject import model_folder
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject
from nbrl.tasks.layout.runs import EVALUATIONS, DataLayout, EvaluationLayout
from nbrl.tasks.nodes.evaluate import evaluate as evaluate_node
from nbrl.tasks.rollout.plan import Server
from nbrl.tasks.runs import epochs
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.runs.sweep import sweep, sweep_stage
from nbrl.tasks.runs.warnings import review, warnings_of
from nbrl.tasks.runs.writer import Writer, writing
from nbrl.tasks.services.local import local_services
from nbrl.tasks.services.progress import Progress, timed
from nbrl.tasks.services.restarts import Restarts
from nbrl.tasks.services.services import Services

Open = Callable[[RunConfig, Path | Server, str, DataLayout, Progress], AbstractAsyncContextManager[Services]]
Node = Callable[[Services, Scope], Awaitable[Artifact]]


async def evaluate_here(plan: EvaluationPlan, take_over: bool = False) -> EvaluationSummary:
    """Evaluate in this process. Raises as the flow does.

    The evaluation is delivered to an MLflow that is configured or that the home has; to make one would take as long as all else.
    """
    storage, config = Storage(plan.config.storage), plan.config
    with ProgressDisplay(err) as progress:
        summary = await evaluated(plan, take_over, progress, local_services, evaluate_node.here)
        if unusable := await asyncio.to_thread(unusable_champion, storage, summary.recipe):
            progress.say(f"nbrl: warning: {unusable}")
        if has_mlflow(config):
            await asyncio.to_thread(try_deliver, storage, config, summary.name, progress.say)
    return summary


async def evaluated(
    plan: EvaluationPlan, take_over: bool, progress: ProgressDisplay, services: Open, node: Node
) -> EvaluationSummary:
    """Return the summary of an evaluation, which goes on where an earlier process stopped.

    Raises ConfigError if another model has its name, and InfraError if another process works on it, which is stopped with
    `take_over`.
    """
    config, layout, storage = plan.config, EvaluationLayout(plan.name), Storage(plan.config.storage)
    _check_subject(storage, layout, plan.subject)
    with opened(plan.start, plan.name, storage, EVALUATIONS, plan.subject.digest) as run:
        storage.create_json(layout.subject, plan.subject.model_dump(mode="json"))
        if (done := summaries.read(storage, plan.name)) is not None:
            return done
        settings, commit = config.model_dump(mode="json"), await asyncio.to_thread(epochs.commit)
        async with (
            writing(run, storage, take_over, progress.say, settings, commit) as writer,
            lines_kept(storage, writer, progress, Home(config.home)),
        ):
            for warning in await asyncio.to_thread(review if plan.subject.server else warnings_of, plan.start):
                progress.say(f"nbrl: warning: {warning}")
            summary = await _as_writer(plan, writer, progress, services, node)
            progress.say(_line(summary))
            return summary


async def _as_writer(plan: EvaluationPlan, writer: Writer, progress: Progress, open_: Open, node: Node) -> EvaluationSummary:
    """Clear away what earlier processes left, and evaluate, with new services after faults."""
    config, storage, layout = plan.config, Storage(plan.config.storage), EvaluationLayout(plan.name)
    await asyncio.to_thread(sweep, storage, writer)
    scope, restarts = writer.evaluation(Weights(digest=plan.subject.digest)), Restarts(config.restarts, progress.say)

    async def work() -> EvaluationSummary:
        with model_folder(config, plan.subject) as folder:
            model = plan.subject.server or folder
            async with open_(config, model, str(scope.updates), layout.data, progress) as services:
                restarts.up()
                progress.begin(f"evaluating {plan.subject.name}")
                result, seconds = await timed(progress, "all", node(services, scope))
                await asyncio.to_thread(sweep_stage, storage, scope.layout, [result])
                return await asyncio.to_thread(finish, storage, layout, config, plan.subject, result, seconds)

    return await restarts.over(work)


def _line(summary: EvaluationSummary) -> str:
    all_ = summary.scores[0]
    score = all_.headline(summary.mode)
    return (
        f"{summary.subject.name}: success {score.value:.3f} ({score.low:.3f} to {score.high:.3f}) over {all_.questions} questions"
    )


def _check_subject(storage: Storage, layout: EvaluationLayout, subject: Subject) -> None:
    """Raises ConfigError if there is an evaluation of this name of another model."""
    try:
        earlier = Subject.model_validate(storage.read_json(layout.subject))
    except MissingError:
        return
    if earlier.digest != subject.digest:
        raise ConfigError(f"{layout.title} is of {earlier.name}, not of {subject.name}; choose another --name")
