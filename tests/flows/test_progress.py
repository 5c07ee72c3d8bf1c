"""The lines of a run that is under way."""

import io

from rich.console import Console

from nbrl.flows.display.progress import ProgressDisplay


def shown(display: ProgressDisplay, console: Console, written: io.StringIO) -> str:
    console.print(display._render())
    text = written.getvalue()
    written.seek(0)
    written.truncate()
    return text


def test_work_that_goes_on_beside_the_next_part_keeps_its_line() -> None:
    written = io.StringIO()
    console = Console(file=written, width=80)
    display = ProgressDisplay(console)
    display.begin("iteration 1")
    display.started("update")
    display.started("rollout of iteration 2")
    display.ended("update", 3.0)
    display.begin("iteration 2")
    display.advanced("rollout of iteration 2", 5, 32)
    text = shown(display, console, written)
    assert "iteration 2" in text
    assert "rollout of iteration 2 5/32" in text
    assert "update" not in text
    display.ended("rollout of iteration 2", 9.0)
    assert "9.0 s" in shown(display, console, written)
