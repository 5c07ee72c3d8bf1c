"""Scores by the class of an environment of one's own, each in a confined process that has nothing but its module."""

import base64
import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from nbrl.infra import own_code
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import RewardError, fault_in_words
from nbrl.tasks.reward.rules import confined
from nbrl.tasks.reward.rules.judged import Judged, Paid, named_facets

RULE = "own"
VOCABULARY = "nbrl/tasks/own.py"  # what such a class is made of
PACKAGE = "nbrl"
OWN = "own"  # folder of the class's module, so that its name can be any
SHOWN_CHARS = 300


# Answers that a class can score, if it can score anything.
PLAIN = (None, "", "0", "{}", "[]", "a, b", "1 2")
PROBES, SLOW = 3, 2  # answers that it scored to other questions, and all that are tried where it takes too long


class _Score(BaseModel):
    """A score as its process writes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    success: bool
    value: FiniteFloat | None
    steps: list[Paid] = Field(max_length=100_000)
    facets: dict[str, float]
    children: list[FiniteFloat]


def scores(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Return the score of each row's trajectory.

    Where the class raises, takes too much or gives a score that cannot be used, the trajectory is wrong if the class can score
    another one of the question, or another answer to it, for then the trajectory is the cause; else it is a fault, as is a lack
    of time on a busy machine. Raises RewardError.
    """
    judged = [Judged(0.0, 0.0)] * len(rows)
    places = sorted(range(len(rows)), key=lambda place: _place(rows[place]))
    for name, same in groupby(places, key=lambda place: _place(rows[place])):
        group = list(same)
        comparisons = [
            {
                "reference": rows[place]["reference"],
                "trajectory": _trajectory(rows[place]),
                "children": rows[place].get("children_scored", False),
            }
            for place in group
        ]
        answers = confined.compare(RULE, comparisons, _module(name))
        for place, done in zip(group, answers, strict=True):
            judged[place] = _judged(done, len(rows[place]["steps"]), _scored_children(rows[place]))
        able = {one["reference"]: True for place, one in zip(group, comparisons, strict=True) if not judged[place].fault}
        scored = [one["trajectory"]["answer"] for place, one in zip(group, comparisons, strict=True) if not judged[place].fault]
        others = [*dict.fromkeys(scored)]
        for place, one, done in zip(group, comparisons, answers, strict=True):
            if judged[place].fault and not done.get("late"):
                if one["reference"] not in able:
                    able[one["reference"]] = _scores_another(one, name, others[:PROBES], "late" in done)
                judged[place] = Judged(0.0, 0.0, value=0.0) if able[one["reference"]] else judged[place]
    return judged


def _scores_another(asked: Mapping[str, Any], place: str, answers: Sequence[str | None], slow: bool) -> bool:
    """Return whether the class can score one of these answers or a PLAIN one, with these steps and files or without."""
    trajectory = asked["trajectory"]
    tried = [{**trajectory, "answer": answer} for answer in (*answers, *PLAIN)]
    plain = [{**child, "answer": "", "steps": []} for child in trajectory["children"]]  # which a class must be able to score
    tried += [{**each, "steps": [], "files": {}, "children": plain} for each in tried[len(answers) :]]
    tried = tried[:SLOW] if slow else tried
    done = confined.compare(RULE, [{**asked, "trajectory": each} for each in tried], _module(place))
    scored = asked["children"]
    return any(
        not _judged(one, len(each["steps"]), len(each["children"]) if scored else 0).fault
        for one, each in zip(done, tried, strict=True)
    )


def cannot_be_made(place: str, settings: Mapping[str, Any]) -> str:
    """Return why the program that scores cannot make the class; empty if it can. Raises RewardError."""
    reference = json.dumps({"place": place, "settings": settings, "reference": None})
    (done,) = confined.compare(RULE, [{"reference": reference, "trajectory": None, "children": False}], _module(place))
    return _storable(str(done.get("fault", "")))


def _place(row: Mapping[str, Any]) -> str:
    return str(json_value(row["reference"])["place"])


def _module(place: str) -> dict[str, str]:
    """Return the modules that the process needs: host paths by their places below its own modules."""
    module = place.partition(":")[0]
    top = module.partition(".")[0]
    own_code.install()  # this may be a worker of Ray
    if top == PACKAGE:  # a world that ships is one file, and imports nothing else of nbrl
        file = f"{module.replace('.', '/')}.py"
        return _vocabulary() | {file: str(Path(__file__).parents[4] / file)}
    spec = find_spec(top)
    if spec is None or not (spec.submodule_search_locations or spec.origin):
        raise RewardError(
            f"the module {top} of the environment {place} is not there any more; put it back{own_code.where_looked(place)}"
        )
    folders = list(spec.submodule_search_locations or ())
    own = {f"{OWN}/{top}": folders[0]} if folders else {f"{OWN}/{top}.py": str(spec.origin)}
    return _vocabulary() | own


def _vocabulary() -> dict[str, str]:
    return {VOCABULARY: str(Path(__file__).parents[2] / "own.py")}


def _trajectory(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the trajectory as JSON; pictures among its outputs are left out."""
    files = {file["path"]: base64.b64encode(file["data"]).decode() for file in row["files"]}
    outcome = json_value(row["outcome"]) if row.get("outcome") else None
    said = {name: row[name] for name in ("question", "ability", "status", "answer")}
    children = [
        {name: child[name] for name in ("kind", "task", "status", "answer")} | {"steps": _steps(child["steps"])}
        for child in row.get("children") or ()
    ]
    return said | {"steps": _steps(row["steps"]), "files": files, "outcome": outcome, "children": children}


def _steps(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    names = ("kind", "think", "code", "observation", "cell_status", "malformed")
    return [
        {name: step[name] for name in names} | {"outputs": [(output["kind"], output["text"]) for output in step["outputs"]]}
        for step in steps
    ]


def _scored_children(row: Mapping[str, Any]) -> int:
    return len(row["children"] or ()) if row.get("children_scored") else 0


def _storable(text: str) -> str:
    """Return a text without halves of surrogate pairs, which an answer can put into an error's message and no table can hold."""
    return text[:SHOWN_CHARS].encode("utf-8", "replace").decode()


def _judged(done: Mapping[str, Any], steps: int, children: int) -> Judged:
    if "fault" in done:
        return Judged(0.0, 0.0, fault=_storable(str(done["fault"])))
    try:
        score = _Score.model_validate(done)
    except ValidationError as error:
        return Judged(0.0, 0.0, fault=_storable(f"its score cannot be used: {fault_in_words(error)}"))
    if score.steps and len(score.steps) != steps:
        return Judged(0.0, 0.0, fault=f"its score has {len(score.steps)} steps, the trajectory {steps}")
    if len(score.children) != children:
        return Judged(0.0, 0.0, fault=f"its score has {len(score.children)} children, the trajectory {children}")
    exact = float(score.success)
    value = exact if score.value is None else min(1.0, max(0.0, score.value))
    worth = tuple(min(1.0, max(0.0, each)) for each in score.children)
    return Judged(exact, value, value, tuple(score.steps), named_facets(score.facets), children=worth)
