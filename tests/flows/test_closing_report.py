"""The report at the end of a run."""

import io

from rich.console import Console

from nbrl.flows.display.pages import report
from tests.tasks.synced import summary_of


def rows(before: dict[str, float], after: dict[str, float]) -> list[list[str]]:
    """The cells of the table of scores."""
    text = io.StringIO()
    Console(width=100, file=text).print(report(summary_of(before, after)))
    lines = text.getvalue().partition("where the time went")[0].splitlines()
    cells = [line.replace("┃", "│").split("│") for line in lines]
    return [[each.strip() for each in row[1:-1]] for row in cells if len(row) == 5]


def test_a_score_that_one_evaluation_alone_has_is_a_dash_in_the_other() -> None:
    scores = {"success": 0.5, "em": 0.25, "f1": 0.75}
    assert rows(scores | {"success/world/lost": 0.125}, {"success": 1.0, "em": 0.5, "success/world/rare": 1.0}) == [
        ["", "before", "after"],
        ["success", "0.500", "1.000"],
        ["exact match", "0.250", "0.500"],
        ["F1", "0.750", "–"],
        ["world/lost", "0.125", "–"],
        ["world/rare", "–", "1.000"],
    ]
