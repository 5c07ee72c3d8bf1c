"""Delivers a finished evaluation from its storage to MLflow, once, below the training run that it evaluates."""

from collections.abc import Callable

from nbrl.infra.errors import DamagedError, InfraError, MissingError, ServerError, shortened
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, sha256
from nbrl.infra.tracking import PARENT, Tracking
from nbrl.infra.tracking_address import missing_database
from nbrl.tasks.environments.settings import Environments
from nbrl.tasks.environments.stored import digests
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.summary import EvaluationSummary, read
from nbrl.tasks.layout.runs import EVALUATIONS, EvaluationLayout, name_of
from nbrl.tasks.layout.stages import is_trajectories, rewards_of
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.pins import champion, recorded
from nbrl.tasks.runs.run import find_run, known_run
from nbrl.tasks.tracking.evaluations import DIGEST, EVALUATION, PARENT_ID, PARENT_NAME, REPORT, TABLE, log_answers
from nbrl.tasks.tracking.names import shown
from nbrl.tasks.tracking.parameters import RUN_ID, facts


def deliver(storage: Storage, config: RunConfig, name: str) -> str:
    """Deliver the evaluation `name`; returns the address of the MLflow that has it. Raises ConfigError if it has not finished,
    and ServerError where MLflow cannot be used.
    """
    layout = EvaluationLayout(name)
    if (summary := read(storage, name)) is None:
        raise ConfigError(f"{layout.title} has not finished; the command that began it goes on with it")
    tracking = Tracking(config.tracking, Home(config.home))
    try:
        _deliver(storage, layout, config, summary, tracking)
    except InfraError:
        raise
    except Exception as error:
        raise ServerError(f"MLflow at {tracking.uri} did not take evaluation {name!r}: {error}") from error
    storage.write_json(layout.delivered, {"uri": tracking.uri})
    return tracking.uri


def try_deliver(storage: Storage, config: RunConfig, name: str, say: Callable[[str], None]) -> None:
    """Deliver as `deliver` does; where MLflow cannot be used, say how it is delivered later."""
    try:
        deliver(storage, config, name)
    except ServerError as error:
        track, why = f"nbrl track {name}{storage.settings.option}", shortened(error)
        say(f"nbrl: warning: the evaluation is not in MLflow; nothing is lost: `{track}` delivers it: {why}")


def has_mlflow(config: RunConfig) -> bool:
    """Return whether these settings name an MLflow, or their home has one."""
    return config.tracking.uri is not None or missing_database(None, Home(config.home)) is None


def was_delivered(storage: Storage, config: RunConfig, name: str) -> bool:
    """Return whether the evaluation was delivered to the MLflow of these settings, which is not asked."""
    tracking = Tracking(config.tracking, Home(config.home))
    try:
        return dict(storage.read_json(EvaluationLayout(name).delivered)) == {"uri": tracking.uri}
    except MissingError:
        return False


def _deliver(
    storage: Storage, layout: EvaluationLayout, config: RunConfig, summary: EvaluationSummary, tracking: Tracking
) -> None:
    """Deliver the evaluation once: scores, a table of answers, a report that is the run's description too, and sample traces.

    One that was delivered already stays; another one of its name, or one that was cut off, is replaced. Where MLflow does not
    have the training run that was evaluated, tags name it, by which its delivery finds the evaluation.
    """
    subject, digest = summary.subject, sha256(storage.read_bytes(layout.summary))
    made = known_run(storage, summary.name, EVALUATIONS)
    identity = {**EVALUATION, RUN_ID: made.run_id}
    if tracking.find_run(summary.name, identity):
        if tracking.tag(DIGEST) == digest:
            return
        tracking.start_over()
    report = storage.read_bytes(layout.report).decode()
    known, started = facts(storage, layout, summary.recipe, subject.name)
    params = {
        "model": subject.name,
        "mode": summary.mode,
        "samples": summary.samples,
        "environments": ", ".join(summary.environments),
        "temperature": config.evaluate.sampling.temperature,
        "top_p": config.evaluate.sampling.top_p,
        "max_steps": config.agent.max_steps,
        "seed": config.seed,
    }
    tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": "nbrl", **known, "nbrl.updates": str(subject.updates)}
    tags["mlflow.note.content"] = report
    if subject.run:
        tags |= {PARENT_NAME: subject.run, PARENT_ID: subject.run_id}
        if parent := tracking.id_of(subject.run, {RUN_ID: subject.run_id}):
            tags[PARENT] = parent
    tracking.start_run(summary.name, params, identity, tags, started=started)
    metrics = {f"eval/{name}": value for name, value in summary.metrics.items()}
    tracking.log_metrics(shown(metrics, summary.environments), 0, summary.finished)
    tracking.log_text(report, REPORT)
    keys = storage.list(layout.evaluations)
    (key,) = filter(is_trajectories, keys)
    if (rewards := rewards_of(key, keys)) is None:
        raise MissingError(f"the rewards beside {storage.uri(key)} are gone")
    tables, tags = (storage.read_table(key), storage.read_table(rewards)), {"run": summary.name}
    log_answers(tracking, storage, made, *tables, config.record.traces, TABLE, tags)
    tracking.set_tag(DIGEST, digest)
    tracking.end("FINISHED", ended=summary.finished)


def champion_score(storage: Storage, summary: EvaluationSummary) -> float | None:
    """Return the success of the champion of the recipe in its newest evaluation that asked as this one did.

    None without a champion, if it was never evaluated in this way, and for an evaluation of the champion itself.
    """
    try:
        best = recorded(storage, summary.recipe)
    except DamagedError:
        return None
    if best is None:
        return None
    summaries: list[EvaluationSummary] = []
    for name in sorted({name_of(key) for key in storage.list(EVALUATIONS)} - {summary.name}):
        try:
            other = read(storage, name)
        except DamagedError:
            continue
        if other is not None and other.subject.run == best.run and other.subject.updates == best.updates:
            summaries += (
                [other] if other.subject.digest != summary.subject.digest and _asked_alike(storage, other, summary) else []
            )
    newest = max(summaries, key=lambda each: each.finished, default=None)
    return None if newest is None else newest.scores[0].headline(newest.mode).value


def unusable_champion(storage: Storage, recipe: str) -> str:
    """Return why the champion of a recipe cannot be used, in a sentence; empty if it can, or if there is none."""
    try:
        if recorded(storage, recipe) is not None:
            champion(storage, recipe)
    except (ConfigError, DamagedError) as error:
        return str(error)
    return ""


def _asked_alike(storage: Storage, one: EvaluationSummary, other: EvaluationSummary) -> bool:
    """Return whether two evaluations asked the same questions in the same way and scored the answers by the same rules."""
    first, second = (
        (each.mode, each.samples, each.environments, each.scores[0].questions, _questions(storage, each), _rules(storage, each))
        for each in (one, other)
    )
    return first == second


def _questions(storage: Storage, summary: EvaluationSummary) -> str | None:
    """Return the digest of the questions, None if it was lost."""
    data = EvaluationLayout(summary.name).data
    return (digests(storage, data) or {}).get(data.split("held_out"))


def _rules(storage: Storage, summary: EvaluationSummary) -> tuple[RewardSettings, Environments] | None:
    run = find_run(storage, summary.name, EVALUATIONS)
    config = None if run is None else stored_config(storage, run)
    return None if config is None else (config.reward, config.environments)
