"""Logs trajectories as MLflow traces: per step one span for the policy and one for the cell."""

from collections.abc import Mapping

from nbrl.agent.trajectory import Step, Trajectory
from nbrl.infra.tracking import Span, Tracking


def spans(trajectory: Trajectory) -> list[Span]:
    """Spans in chronological order; a step's policy call comes first, its cell right after."""
    clock = int(trajectory.started_at * 1e9)
    result: list[Span] = []
    for number, step in enumerate(trajectory.steps):
        thought, ran = clock + int(step.policy_seconds * 1e9), clock + int((step.policy_seconds + step.kernel_seconds) * 1e9)
        result.append(
            Span(
                name=f"step {number}: {'think' if step.kind == 'cell' else 'summarise'}",
                kind="LLM",
                start_ns=clock,
                end_ns=thought,
                inputs={"notepad": step.notepad},
                outputs=_outputs(step),
            )
        )
        if step.code:
            result.append(
                Span(
                    name=f"step {number}: cell",
                    kind="TOOL",
                    start_ns=thought,
                    end_ns=ran,
                    inputs={"code": step.code},
                    outputs={"status": step.cell_status, "output": step.observation},
                )
            )
        clock = ran
    return result


def _outputs(step: Step) -> dict[str, str]:
    if step.kind == "summary":
        return {"think": step.think, "summary": step.observation, "malformed": step.malformed}
    return {"think": step.think, "code": step.code, "malformed": step.malformed}


def log_trace(tracking: Tracking, trajectory: Trajectory, tags: Mapping[str, str]) -> None:
    tracking.log_trace(
        name=trajectory.id,
        inputs={"question": trajectory.question},
        outputs={"answer": trajectory.answer, "status": trajectory.status.value},
        spans=spans(trajectory),
        tags={**tags, "ability": trajectory.ability},
    )
