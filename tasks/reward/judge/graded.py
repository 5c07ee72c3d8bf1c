"""Joins grades to trajectories, so that scoring them is a pure function."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.reward.judge.ask import ask_all
from nbrl.tasks.reward.judge.prompt import JudgedAnswer, asked_of, grading_of
from nbrl.tasks.reward.judge.settings import GRADES, NEEDED, JudgeSettings
from nbrl.tasks.reward.rules.rule import RULE, given
from nbrl.tasks.reward.score import check_unscored


async def graded(rows: pa.Table, settings: JudgeSettings | None, storage: Storage, say: Callable[[str], None]) -> pa.Table:
    """Return the rows, of which NEEDED is read, with the columns `grade` and `ungraded`: the judge's grade, or why there is none.

    Grades that are on the storage are taken from there; only the others are asked for, each content once. Raises RewardError as
    soon as more trajectories have no grade than are allowed.
    """
    places = _places(rows)
    if settings is None or not places:
        return _joined(rows, places, {}, {})
    faults: dict[JudgedAnswer, str] = {}

    def failed(asked: JudgedAnswer, reason: str) -> None:
        faults[asked] = reason
        check_unscored([fault for each, fault in faults.items() for _ in places[each]], len(rows))

    grades = await ask_all(places, grading_of(settings), storage, say, failed)
    return _joined(rows, places, grades, faults)


class Recorded(NamedTuple):
    """Rows as they were scored, and the keys of the grades that are gone."""

    rows: pa.Table
    gone: list[str]


def recorded(rows: pa.Table, unscored: Mapping[str, str], settings: JudgeSettings | None, storage: Storage) -> Recorded:
    """Return the rows with the columns that `graded` gave them, from the storage alone.

    `unscored` are the recorded faults by trajectory: an answer without a grade then is one now, even if it was graded since.
    """
    places = _places(rows)
    if settings is None or not places:
        return Recorded(_joined(rows, places, {}, {}), [])
    ids = rows["id"].to_pylist()
    judge = grading_of(settings)
    grades = judge.find(storage, places)
    faults = {each: fault for each, same in places.items() for place in same if (fault := unscored.get(ids[place]))}
    gone = [judge.key(each) for each in places if each not in grades and each not in faults]
    return Recorded(_joined(rows, places, {each: grades[each] for each in grades if each not in faults}, faults), gone)


def _places(rows: pa.Table) -> dict[JudgedAnswer, list[int]]:
    """Return the items to grade, each with its rows."""
    places: dict[JudgedAnswer, list[int]] = {}
    if RULE in rows["rule"].unique().to_pylist():
        for place, row in enumerate(rows.select(NEEDED).to_pylist()):
            if row["rule"] == RULE and given(row["answer"]):
                places.setdefault(asked_of(row), []).append(place)
    return places


def _joined(
    rows: pa.Table, places: dict[JudgedAnswer, list[int]], grades: Mapping[JudgedAnswer, str], faults: Mapping[JudgedAnswer, str]
) -> pa.Table:
    for name, said in zip(GRADES, (grades, faults), strict=True):
        column = [""] * len(rows)
        for each, same in places.items():
            for place in same:
                column[place] = said.get(each, "")
        rows = rows.append_column(name, pa.array(column, pa.string()))
    return rows
