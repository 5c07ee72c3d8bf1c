"""An evaluation in a terminal: its plan, and its scores."""

import pyarrow as pa
import yaml
from rich.box import SIMPLE
from rich.table import Table

from nbrl.flows.display.terminal import plain
from nbrl.tasks.evaluation.answers import HOW, header, rows
from nbrl.tasks.evaluation.statistics import about_intervals
from nbrl.tasks.evaluation.summary import EvaluationSummary
from nbrl.tasks.runs.config import RunConfig

SHOWN_CHARS = 80  # of a question or an answer
NOT_SHOWN = {"iterations", "policy"}  # which an evaluation of a served model does not use


def described(name: str, model: str, config: RunConfig, questions: pa.Table, trajectories: int, where: str) -> str:
    """Return the settings that are not at their defaults as YAML, and below them what the evaluation will do."""
    first = questions.slice(0, 1).to_pylist()[0]
    example = f"{_short(first['question'])} → {_short(' | '.join(first['answers']) or 'no reference')}"
    settings = config.model_dump(mode="json", exclude_defaults=True, exclude=NOT_SHOWN)
    lines = [
        f"# evaluation {name} of {model}",
        f"# questions: {trajectories // config.evaluate.samples} × {config.evaluate.samples} = {trajectories} trajectories, "
        f"{HOW[config.evaluate.mode]}{'' if config.evaluate.mode == 'direct' else f', at most {config.agent.max_steps} steps'}",
        f"# the first: {example}",
        f"# compared by: {', '.join(sorted(set(questions['rule'].to_pylist())))}",
        f"# runs {where}",
        f"# storage: {config.storage.root}",
    ]
    return f"{yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)}" + "\n".join(lines)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return f"{line[:SHOWN_CHARS]}…" if len(line) > SHOWN_CHARS else line


def scores(summary: EvaluationSummary) -> Table:
    """Return the table of scores."""
    table = Table(box=SIMPLE, title=plain(f"{summary.subject.name}: {HOW[summary.mode]}"), title_justify="left")
    for column in header(summary):
        table.add_column(column, justify="left" if column == "questions" else "right", no_wrap=True)
    for row in rows(summary, brief=True):
        table.add_row(*map(plain, row))
    return table


def footnotes(summary: EvaluationSummary) -> str:
    """Return what a reader of the scores needs to know."""
    failed = f"{summary.failed} failed for the infrastructure and are left out; " if summary.failed else ""
    unscored = f"{summary.unscored} could not be scored and count as wrong; " if summary.unscored else ""
    return f"{failed}{unscored}{about_intervals(summary.scores[0].questions if summary.scores else 0)}"
