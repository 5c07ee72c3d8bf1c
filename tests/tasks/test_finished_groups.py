"""What has finished of a stream's groups, also where two runners finished the same trajectory."""

import pyarrow as pa

from nbrl.tasks.rollout.chunks import SCHEMA
from nbrl.tasks.rollout.finished import FinishedGroups


def row(name: str, part: str, version: str, ended: float) -> pa.Table:
    given = {"id": name, "part": part, "versions": [version], "started_at": 0.0, "seconds": ended}
    return pa.Table.from_pylist([given], schema=SCHEMA)


def test_groups_are_whole_in_the_order_in_which_they_finished() -> None:
    finished = FinishedGroups(2)
    for name, ended in (("a-0", 1.0), ("b-0", 2.0), ("b-1", 3.0), ("a-1", 4.0), ("c-0", 5.0)):
        finished.note(row(name, f"part of {name}", "3", ended))
    assert list(finished.oldest(["c", "a", "b"], 5).items()) == [("b", 3), ("a", 3)]
    assert ("c-0" in finished, "c-1" in finished, "d-0" in finished) == (True, False, False)


def test_of_two_attempts_the_first_counts_until_the_admitted_one_is_chosen() -> None:
    finished = FinishedGroups(1)
    finished.note(row("a-0", "old", "1", 1.0))
    finished.note(row("a-0", "new", "4", 2.0))
    assert finished.oldest(["a"], 4) == {"a": 1}
    finished.choose({"a-0": "lost", "b-0": "new"})
    assert finished.table(["a-0"])["part"].to_pylist() == ["old"]
    finished.choose({"a-0": "new"})
    assert finished.table(["a-0"])["part"].to_pylist() == ["new"]
    assert finished.oldest(["a"], 4) == {"a": 4}
    assert finished.keep([]) == ["new", "old"]
