"""`nbrl ci`."""

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nbrl.flows.cli.stored import Home, Recipe, Set, overrides_of
from nbrl.flows.cli.train import train_run
from nbrl.flows.display.terminal import out, say

if TYPE_CHECKING:
    from nbrl.tasks.comparison.learned import LearningTest


def ci(
    recipe: Recipe,
    margin: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="how much it must gain, with all of the gain's interval")
    ] = 0.05,
    expect: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="a success that it may fall short of by the margin, in place of a gain")
    ] = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE.xml", help="write a report in JUnit's format")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE.png", help="draw the learning curve into this file")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
    home: Home = None,
    set_: Set = None,
) -> None:
    """Train a recipe and say whether it learned: a test for a change of its code, questions or rewards. Exit code 1 if not.

    Its held-out questions are asked before the first update and after the last; the gain is that on the same questions.
    """
    from nbrl.flows.display.saved import put, writable
    from nbrl.tasks.comparison.learned import LearningTest
    from nbrl.tasks.comparison.learned import junit as report
    from nbrl.tasks.runs.preflight import prepared
    from nbrl.tasks.runs.run import new_name

    for path in (junit, picture):
        if path is not None:
            writable(path)
    began, written, sides = time.monotonic(), list[Path](), list[Any]()

    def seconds() -> float:
        return round(time.monotonic() - began, 1)

    def write_report(test: "LearningTest") -> None:
        if junit is not None:
            put(junit, report(str(recipe), seconds(), test))
            written.append(junit)

    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a report is left then too
    try:
        start = prepared(recipe, overrides_of(home, set_), "train")
        name = new_name(f"{start.config.name}-ci")
        test, sides = _trained(start, name, margin, expect, as_json)
    except BaseException as error:  # a stop has no words
        write_report(LearningTest(False, f"the training failed: {_in_one_line(error) or 'it was stopped'}", {}))
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    write_report(test)
    if picture is not None and sides:
        from nbrl.tasks.comparison.page import draw

        put(picture, draw(sides))
        written.append(picture)
    if as_json:
        print(json.dumps({"run": name, "passed": test.passed, "reason": test.reason, "seconds": seconds(), **test.figures}))
    elif test.passed:
        out.print(f"{start.config.name} learns: {test.reason}", markup=False, highlight=False)
    for target in () if as_json else written:
        out.print(f"written  {target}", markup=False, highlight=False, soft_wrap=True)
    if not test.passed:
        say(f"{start.config.name} does not learn enough: {test.reason}", "red")
        raise typer.Exit(1)


def _trained(start: Any, name: str, margin: float, expect: float | None, quiet: bool) -> tuple["LearningTest", list[Any]]:
    """Train, and return the judgement and the side whose curve a picture shows, none where nothing was learned."""
    from nbrl.infra.storage import Storage
    from nbrl.tasks.comparison.compare import compare, sides_of
    from nbrl.tasks.comparison.learned import LearningTest, judged
    from nbrl.tasks.errors import NothingLearnedError

    def how_to_continue(run: str) -> str:
        return f"`nbrl ci` begins again; `nbrl resume {run}` continues the training"

    try:
        train_run(lambda: (start, name), how_to_continue, take_over=False, quiet=quiet)
    except NothingLearnedError as error:
        return LearningTest(False, _in_one_line(error), {}), []
    comparison = compare(sides_of(Storage(start.config.storage), [f"{name}@0", name]))
    before, after = (side.final.estimate.value for side in comparison.sides)
    gain = comparison.pairs[0].difference
    assert gain is not None  # a run asks the same questions before and after
    return judged(before, after, gain, margin, expect), list(comparison.sides[1:])


def _in_one_line(error: BaseException) -> str:
    return "; ".join(" ".join(line.split()).rstrip(".;:") for line in str(error).splitlines())
