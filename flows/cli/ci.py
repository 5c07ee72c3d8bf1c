"""`nbrl ci`."""

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from nbrl.flows.cli.stored import Home, Recipe, Set, overrides_of
from nbrl.flows.cli.train import train_run
from nbrl.flows.display.terminal import out, say


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
    from nbrl.infra.storage import Storage
    from nbrl.tasks.comparison.compare import compare, sides_of
    from nbrl.tasks.comparison.learned import LearningTest, judged
    from nbrl.tasks.comparison.learned import junit as report
    from nbrl.tasks.errors import NothingLearnedError
    from nbrl.tasks.runs.preflight import prepared
    from nbrl.tasks.runs.run import new_name

    for path in (junit, picture):
        if path is not None:
            writable(path)
    began = time.monotonic()

    def report_failure(error: BaseException) -> None:
        if junit is not None:  # a stop has no words
            failed = LearningTest(False, f"the training failed: {' '.join(str(error).split()) or 'it was stopped'}", {})
            put(junit, report(str(recipe), time.monotonic() - began, failed))

    try:
        start = prepared(recipe, overrides_of(home, set_), "train")
    except BaseException as error:
        report_failure(error)
        raise
    name = new_name(f"{start.config.name}-ci")

    def prepare() -> tuple[Any, str]:
        return start, name

    sides: list[Any] = []
    try:
        train_run(
            prepare, lambda run: f"`nbrl ci` begins again; `nbrl resume {run}` continues the training", False, quiet=as_json
        )
    except NothingLearnedError as error:
        test = LearningTest(False, " ".join(str(error).split()), {})
    except BaseException as error:
        report_failure(error)
        raise
    else:
        comparison = compare(sides_of(Storage(start.config.storage), [f"{name}@0", name]))
        before, after = (side.final.estimate.value for side in comparison.sides)
        gain, sides = comparison.pairs[0].difference, list(comparison.sides[1:])
        assert gain is not None  # a run asks the same questions before and after
        test = judged(before, after, gain, margin, expect)
    seconds, written = time.monotonic() - began, list[Path]()
    if junit is not None:
        put(junit, report(start.config.name, seconds, test))
        written.append(junit)
    if picture is not None and sides:
        from nbrl.tasks.comparison.page import draw

        put(picture, draw(sides))
        written.append(picture)
    if as_json:
        print(
            json.dumps({"run": name, "passed": test.passed, "reason": test.reason, "seconds": round(seconds, 1), **test.figures})
        )
    elif test.passed:
        out.print(f"{start.config.name} learns: {test.reason}", markup=False, highlight=False)
    for target in () if as_json else written:
        out.print(f"written  {target}", markup=False, highlight=False, soft_wrap=True)
    if not test.passed:
        say(f"{start.config.name} does not learn enough: {test.reason}", "red")
        raise typer.Exit(1)
