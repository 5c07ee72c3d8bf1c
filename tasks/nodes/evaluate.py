"""evaluate: samples and scores held-out questions as in training, without learning from them."""

import asyncio
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.tools.settings import SearchSettings
from nbrl.agent.trajectory import Status
from nbrl.tasks.evaluation.answers import answers_in
from nbrl.tasks.evaluation.scores import metrics as score_metrics
from nbrl.tasks.evaluation.scores import scores
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.diagnosis import diagnose
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import over_parts, score_trajectories
from nbrl.tasks.nodes.rollout import CORPUS, earlier_chunks, roll_out, task_rows
from nbrl.tasks.rollout.chunks import places_of
from nbrl.tasks.rollout.plan import RoundPlan
from nbrl.tasks.runs.config import EvaluateSettings
from nbrl.tasks.runs.history import Record, Summary, policy_after, sampler_of, skipped_in_row
from nbrl.tasks.runs.pipeline_settings import PipelineSettings
from nbrl.tasks.runs.results import evaluations_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services


def asked(held_out: pa.Table, settings: EvaluateSettings, seed: int, search: SearchSettings = CORPUS) -> list[dict[str, Any]]:
    """Return one row per trajectory of an evaluation, as `task_rows` makes them; `seed` is that of the run."""
    questions = first_of_each(held_out, settings.questions)
    return task_rows(questions.append_column("group", questions["id"]), settings.samples, derive_seed(seed, "evaluate"), search)


def first_of_each(questions: pa.Table, count: int | None) -> pa.Table:
    """Return the first `count` questions of each environment, all if it is None."""
    names = list(dict.fromkeys(questions["environment"].to_pylist()))
    parts = [questions.filter(pc.equal(questions["environment"], name)).slice(0, count) for name in names]
    return pa.concat_tables(parts)


@durable
async def evaluate(services: Services, scope: Scope) -> Artifact:
    """Evaluate a policy on the first `evaluate.questions` held-out questions of each environment, always with the same seed.

    A trajectory that could not be scored counts as wrong; one that failed for the infrastructure is left out of the scores.
    Raises RolloutError if more failed than `rollout.failed_share` allows, BrokenInvariantError if one was sampled from other
    weights than those of the scope.
    """
    settings, config, layout = services.config.evaluate, services.config, scope.layout.round(0)
    version = await services.serve(scope)
    questions = await asyncio.to_thread(services.reads.questions, scope.run_layout.data, "held_out")
    rows = asked(questions, settings, scope.seed, config.rollout.tools.search)
    chunks, earlier = layout.chunks(scope.weights.digest), await earlier_chunks(services, scope, 0)
    plan = RoundPlan(chunks, earlier, settings.sampling, config.engine, direct=settings.mode == "direct")
    trajectories = await roll_out(services, "evaluate", rows, layout.trajectories, version, plan)
    rewards = await score_trajectories(services, layout, trajectories, questions)
    answers = await asyncio.to_thread(_answers, services, trajectories, rewards, questions)
    sampled, scored = trajectories.values, rewards.values
    metrics = {
        "em": scored["reward/em"],
        "trajectories": float(len(rows)),
        "failed": sampled[f"rollout/status/{Status.FAILED}"],
        "unscored": scored["reward/unscored"],
        "sampled_tokens": sampled["rollout/sampled_tokens"],
        "steps": sampled["rollout/steps"],
    }
    metrics |= {key.removeprefix("reward/"): value for key, value in scored.items() if key.count("/") > 1}
    metrics |= score_metrics(scores(answers), settings.mode)
    parts = {trajectories.path: trajectories.digest, **trajectories.parts}
    return Artifact(path=rewards.path, digest=rewards.digest, parts=parts, metrics=of(metrics, "last"))


def _answers(services: Services, trajectories: Artifact, rewards: Artifact, questions: pa.Table) -> pa.Table:
    """Return the answers, in the order of the trajectories."""
    index = places_of(services.storage, trajectories.path, trajectories.digest)
    return over_parts(services.runners, index, answers_in, (services.storage, services.read(rewards), questions), "trajectory")


def draw_curve(rollouts: Sequence[tuple[float, float]], evaluations: Mapping[int, Mapping[str, float]]) -> bytes:
    """Return a picture of the success of training rollouts and of held-out questions, with its intervals, by the updates of the
    policy that was asked.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([x for x, _ in rollouts], [y for _, y in rollouts], color="#4477aa", label="training rollouts")
    updates = sorted(evaluations)
    success, low, high = ([evaluations[x][name] for x in updates] for name in ("success", "success_low", "success_high"))
    bars = [[max(0.0, y - end) for y, end in zip(success, low, strict=True)]]
    bars += [[max(0.0, end - y) for y, end in zip(success, high, strict=True)]]
    axes.errorbar(updates, success, yerr=bars, fmt="o", capsize=3, color="#cc3311", label="held-out questions, 95 %")
    for x in {updates[0], updates[-1]}:
        y = evaluations[x]["success"]
        axes.annotate(f"{y:.2f}", (x, y), textcoords="offset points", xytext=(6 if x == updates[0] else -32, -14))
    axes.set(xlabel="updates", ylabel="success", ylim=(0, 1.05))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _example(services: Services, evaluation: Artifact) -> str:
    """Return the id of a trajectory worth reading: a right answer that took more than one step, if there is one."""
    rows = services.read(evaluation).to_pylist()
    return str(max(rows, key=lambda row: (row["success"], len(row["step_rewards"]) > 1))["trajectory"])


def _sampled_by(run: Run, records: Sequence[Record], number: int, pipeline: PipelineSettings) -> float:
    """Return after how many updates the weights were that sampled a batch: in the mean, where there were several."""
    if pipeline.stream:
        return policy_after(run, records[:number]).updates - records[number].metrics.get("pipeline/staleness", 0.0)
    return sampler_of(run, records, number, pipeline.lag).updates


def summarise(services: Services, run: Run, before: Artifact, after: Artifact, records: Sequence[Record]) -> Summary:
    """Write `summary.json` and `learning-curve.png` below the run's folder."""
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        for key, value in record.metrics.items():
            if key.startswith("time/") and key != "time/overhead_share":
                seconds[key.removeprefix("time/")] += value
    curve = [record.metrics["reward/success"] for record in records]
    sampled = [_sampled_by(run, records, number, services.config.pipeline) for number in range(len(records))]
    picture = draw_curve(list(zip(sampled, curve, strict=True)), evaluations_of(services.storage, run))
    services.storage.write_bytes(run.layout.curve, picture)
    skipped = skipped_in_row(records)
    summary = Summary(
        run=run.name,
        before=before.values,
        after=after.values,
        iterations=len(records),
        skipped_in_row=skipped,
        stalled=_stalled(services, records),
        trajectories=int(sum(record.metrics["rollout/trajectories"] for record in records)),
        sampled_tokens=int(sum(record.metrics["rollout/sampled_tokens"] for record in records)),
        mismatch_max=max((record.metrics["mismatch/logprob_max_abs"] for record in records if not record.skipped), default=0.0),
        overhead_share=seconds["overhead"] / seconds["iteration"] if records else 0.0,
        seconds=dict(seconds),
        curve=curve,
        curve_path=services.storage.uri(run.layout.curve),
        example=f"{run.name}/{_example(services, after)}",
    )
    services.storage.write_json(run.layout.summary, summary.model_dump(mode="json"))
    services.delivery.wake()
    return summary


def _stalled(services: Services, records: Sequence[Record]) -> str:
    """Return the diagnosis of the iterations without an update with which the run ended; empty if it did not end with any."""
    skipped, settings = skipped_in_row(records), services.config.select
    if skipped >= settings.patience:
        more = "a higher select.patience goes on with this run's next prompts"
    elif skipped and skipped == len(records):
        more = "more iterations go on with this run's next prompts"
    else:
        return ""
    return diagnose(services.storage, records[-skipped:], f"{more}; other settings need another --run name")
