"""What has finished of a stream's groups, also where two runners finished the same trajectory."""

import pyarrow as pa

from nbrl.tasks.rollout.chunks import SCHEMA
from nbrl.tasks.rollout.finished import FinishedGroups
from nbrl.tasks.rollout.stream import usable_attempts


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


def test_what_failed_or_was_sampled_from_too_many_weights_is_run_again_unless_it_was_admitted() -> None:
    given = [
        {"id": name, "part": f"part of {name}", "status": status, "versions": versions}
        for name, status, versions in (
            ("a-0", "answered", ["1", "2"]), ("a-1", "answered", ["1", "3"]), ("a-2", "failed", ["1"]),
            ("b-0", "answered", ["1", "3"]), ("b-1", "failed", []), ("b-2", "failed", []),
        )
    ]  # fmt: skip
    index = pa.Table.from_pylist(given, schema=SCHEMA)
    admitted = {"b-0": "part of b-0", "b-1": "part of b-1", "b-2": "another part"}
    assert usable_attempts(index, 1, admitted)["id"].to_pylist() == ["a-0", "b-0", "b-1"]
    assert usable_attempts(index, None, {})["id"].to_pylist() == ["a-0", "a-1", "b-0"]
