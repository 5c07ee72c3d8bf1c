"""Summarises a finished run: scores before and after, seconds by node, the learning curve."""

import io
from collections import defaultdict
from collections.abc import Sequence

from nbrl.tasks.nodes.diagnosis import diagnose
from nbrl.tasks.runs.history import Record, Summary, skipped_in_row
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.services import Services


def draw_curve(before: float, curve: Sequence[float], after: float) -> bytes:
    """Draw as PNG the success of every iteration's rollouts between the two held-out evaluations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot(range(len(curve)), curve, color="#4477aa", label="training rollouts")
    axes.plot([0, len(curve)], [before, after], "o", color="#cc3311", label="held-out questions")
    axes.annotate(f"{before:.2f}", (0, before), textcoords="offset points", xytext=(6, -14))
    axes.annotate(f"{after:.2f}", (len(curve), after), textcoords="offset points", xytext=(-28, -14))
    axes.set(xlabel="iterations", ylabel="success", ylim=(0, 1.05))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _example(services: Services, evaluation: Artifact) -> str:
    """Id of a trajectory worth reading: a right answer that took more than one step, if there is one."""
    rows = services.read(evaluation).to_pylist()
    return str(max(rows, key=lambda row: (row["success"], len(row["step_rewards"]) > 1))["trajectory"])


def summarise(services: Services, run: Run, before: Artifact, after: Artifact, records: Sequence[Record]) -> Summary:
    """Write `summary.json` and `learning-curve.png` below the run's folder."""
    seconds: dict[str, float] = defaultdict(float)
    for record in records:
        for key, value in record.metrics.items():
            if key.startswith("time/") and key != "time/overhead_share":
                seconds[key.removeprefix("time/")] += value
    curve = [record.metrics["reward/success"] for record in records]
    scores_before, scores_after = before.values, after.values
    picture = draw_curve(scores_before["success"], curve, scores_after["success"])
    services.storage.write_bytes(run.layout.curve, picture)
    skipped = skipped_in_row(records)
    summary = Summary(
        run=run.name,
        before=scores_before,
        after=scores_after,
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
    """The diagnosis of the iterations without an update with which the run ended; empty if it did not end with any."""
    skipped, settings = skipped_in_row(records), services.config.select
    if skipped >= settings.patience:
        more = "a higher select.patience goes on with this run's next prompts"
    elif skipped and skipped == len(records):
        more = "more iterations go on with this run's next prompts"
    else:
        return ""
    return diagnose(services.storage, records[-skipped:], f"{more}; other settings need another --run name")
