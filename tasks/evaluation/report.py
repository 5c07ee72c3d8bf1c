"""An evaluation as a page of Markdown."""

import time
from collections.abc import Iterable, Sequence

from nbrl.tasks.evaluation.scores import Scores
from nbrl.tasks.evaluation.summary import EvaluationSummary


def header(summary: EvaluationSummary) -> list[str]:
    """The columns of the table of scores."""
    ks = sorted({k for each in summary.scores for k in each.pass_at})
    several = ["majority"] if summary.samples > 1 else []
    return ["questions", "n", "success", *(f"pass@{k}" for k in ks), *several, "F1"]


def rows(summary: EvaluationSummary, brief: bool = False) -> list[list[str]]:
    """One row for all questions, each environment and each ability, with 95 % intervals over the questions.

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
    """The page; `where` is the address of the table of all answers."""
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
        "Brackets hold 95 % bootstrap intervals over the questions. A missing answer is wrong.",
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
