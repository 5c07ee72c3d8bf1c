"""All answers of an evaluation as one table: question × answer × reference × score × trajectory."""

import time
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import SAMPLED
from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.evaluation.scores import metrics, scores
from nbrl.tasks.evaluation.statistics import about_intervals
from nbrl.tasks.evaluation.summary import EvaluationSummary, Scores, Subject
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.rollout.chunks import blocks_of, in_order, places_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),  # with the environment's name, in an evaluation of several or of one
        ("environment", pa.string()),
        ("ability", pa.string()),
        ("question", pa.string()),
        ("references", pa.list_(pa.string())),
        ("sample", pa.int32()),
        ("answer", pa.string()),
        ("status", pa.string()),
        ("success", pa.float64()),
        ("em", pa.float64()),
        ("f1", pa.float64()),
        ("reward", pa.float64()),
        ("steps", pa.int32()),
        ("sampled_tokens", pa.int64()),
        ("trajectory", pa.string()),
        ("unscored", pa.string()),
        ("failure", pa.string()),
    ]
)


def answers_of(trajectories: pa.Table, rewards: pa.Table, questions: pa.Table) -> pa.Table:
    """Return one row of SCHEMA for each trajectory, in the order of `trajectories`. A failed or unscored one has success 0."""
    by_id = {row["id"]: row for row in questions.select(["id", "answers"]).to_pylist()}
    scored = {row["trajectory"]: row for row in rewards.to_pylist()}
    rows = []
    columns = ["id", "group", "sample", "question", "ability", "environment", "status", "answer", "failure", "nodes", "steps"]
    for row in trajectories.select(columns).to_pylist():
        reward = scored[row["id"]]
        rows.append(
            {
                "question_id": question_id(row["environment"], row["group"]),
                "environment": row["environment"],
                "ability": row["ability"],
                "question": row["question"],
                "references": by_id[row["group"]]["answers"],
                "sample": row["sample"],
                "answer": row["answer"],
                "status": row["status"],
                "success": reward["success"],
                "em": reward["em"],
                "f1": reward["f1"],
                "reward": reward["total"],
                "steps": len(row["steps"]),
                "sampled_tokens": sum(len(node["token_ids"]) for node in row["nodes"] if node["kind"] in SAMPLED),
                "trajectory": row["id"],
                "unscored": reward["unscored"],
                "failure": row["failure"],
            }
        )
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def answers_in(block: pa.Table, storage: Storage, rewards: pa.Table, questions: pa.Table) -> pa.Table:
    """Return those of rows of a round's index; a function that Ray Data maps."""
    trajectories = joined(block, storage.read_table)
    rewards = rewards.filter(pc.is_in(rewards["trajectory"], value_set=trajectories["id"].combine_chunks()))
    questions = questions.filter(pc.is_in(questions["id"], value_set=trajectories["group"].combine_chunks()))
    return answers_of(trajectories, rewards, questions)


def answers_of_result(storage: Storage, result: Artifact, questions: pa.Table) -> pa.Table:
    """Return the answers of an evaluation whose node made `result`, block by block, in the order of its trajectories."""
    trajectories = next(filter(is_trajectories, result.parts))
    index = places_of(storage, trajectories, result.parts[trajectories])
    rewards = storage.read_table(result.path, result.digest)
    tables = [answers_in(block, storage, rewards, questions) for block in blocks_of(index)]
    return in_order(pa.concat_tables(tables), index["id"].to_pylist(), "trajectory")


def question_id(environment: str, group: str) -> str:
    """Return a question's id without the environment's prefix, by which evaluations are joined."""
    prefix = f"{environment}:"
    return group if group.startswith(prefix) else prefix + group


def header(summary: EvaluationSummary) -> list[str]:
    """Return the columns of the table of scores."""
    ks = sorted({k for each in summary.scores for k in each.pass_at})
    several = ["majority"] if summary.samples > 1 else []
    return ["questions", "n", "success", *(f"pass@{k}" for k in ks), *several, "F1"]


def rows(summary: EvaluationSummary, brief: bool = False) -> list[list[str]]:
    """Return one row for all questions, each environment and each ability, with 95 % intervals over the questions.

    A `brief` row has that of the score that counts alone.
    """
    return [_row(each, header(summary), summary.mode, brief) for each in summary.scores]


def _row(scores: Scores, columns: Sequence[str], mode: str, brief: bool) -> list[str]:
    estimates = {"success": scores.success, "F1": scores.f1} | {f"pass@{k}": value for k, value in scores.pass_at.items()}
    if scores.majority is not None:
        estimates["majority"] = scores.majority
    cells = {"questions": scores.label, "n": str(scores.questions)}
    for name, each in estimates.items():
        cells[name] = f"{each.value:.3f}" if brief and each is not scores.headline(mode) else str(each)
    return [cells.get(column, "") for column in columns]


def markdown(summary: EvaluationSummary, where: str) -> str:
    """Return the page; `where` is the address of the table of all answers."""
    columns = header(summary)
    lines = [
        f"# Evaluation of {summary.subject.name}",
        "",
        f"{summary.name}: {HOW[summary.mode]}, {summary.samples} sample(s) per question, recipe {summary.recipe}, "
        f"finished {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime(summary.finished))}.",
        "",
        _line(columns),
        _line("---" for _ in columns),
        *map(_line, rows(summary)),
        "",
        f"{about_intervals(summary.scores[0].questions if summary.scores else 0).capitalize()}. A missing answer is wrong.",
        "",
        f"{summary.trajectories} trajectories, of which {summary.failed} failed for the infrastructure and are left out, and "
        f"{summary.unscored} could not be scored and count as wrong; {summary.sampled_tokens} sampled tokens, "
        f"{summary.seconds:.0f} s.",
        "",
        f"All answers: `{where}`",
        "",
    ]
    return "\n".join(lines)


HOW = {"agent": "notebook agent", "direct": "direct answers without a notebook", "vote": "majority vote of the notebook agent"}


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def finish(
    storage: Storage, layout: EvaluationLayout, config: RunConfig, subject: Subject, result: Artifact, seconds: float
) -> EvaluationSummary:
    """Write answers, report and summary of an evaluation whose node made `result`; returns the summary."""
    answers = answers_of_result(storage, result, stored.read(storage, layout.data, "held_out"))
    scored, mode = scores(answers), config.evaluate.mode
    storage.write_table(layout.answers, answers)
    summary = EvaluationSummary(
        name=layout.name,
        recipe=config.name,
        subject=subject,
        mode=mode,
        samples=config.evaluate.samples,
        environments=list(config.environments),
        metrics=metrics(scored, mode),
        scores=scored,
        trajectories=len(answers),
        sampled_tokens=sum(answers["sampled_tokens"].to_pylist()),
        failed=int(result.values["failed"]),
        unscored=int(result.values["unscored"]),
        seconds=seconds,
        processor_seconds=result.values.get("cpu/evaluate", 0.0),
        gpu_seconds=0.0 if subject.server else result.values.get("gpu/evaluate", 0.0),
        finished=time.time(),
    )
    storage.write_bytes(layout.report, markdown(summary, storage.uri(layout.answers)).encode())
    storage.write_json(layout.summary, summary.model_dump(mode="json"))
    return summary
