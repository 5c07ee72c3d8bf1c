"""Files of questions that are small and mean much work."""

import gzip
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbrl.tasks.environments import csv_table, json_table
from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.environments.json_table import _distinct
from nbrl.tasks.environments.tables import read_rows
from nbrl.tasks.errors import ConfigError
from tests.tasks.question_rows import write


def calls(read: Callable[[Path], object], path: Path) -> int:
    """The calls of functions, in Python or C, while a file is read."""
    events = list[str]()
    sys.setprofile(lambda frame, event, argument: events.append(event))
    try:
        read(path)
    finally:
        sys.setprofile(None)
    return len(events)


@pytest.mark.attack(
    tried="An object of JSON with twenty thousand keys, the last of which is there twice",
    wall="the doubled key is found in one pass",
    effect="one sentence",
)
def test_a_doubled_key_is_found_without_a_look_at_all_others(tmp_path: Path) -> None:
    hashed = list[str]()

    class Name(str):
        def __hash__(self) -> int:
            hashed.append(self)
            return super().__hash__()

    def work(count: int) -> int:
        hashed.clear()
        with pytest.raises(ValueError, match=f"has the name 'k{count - 1}' twice"):
            _distinct([(Name(f"k{number}"), number) for number in [*range(count), count - 1]])
        return len(hashed)

    assert work(400) < 2.5 * work(200)
    keys = ", ".join(f'"k{number}": 1' for number in [*range(20_000), 19_999])
    (tmp_path / "x.jsonl").write_text(f"{{{keys}}}\n")
    with pytest.raises(ConfigError, match="line 1: an object has the name 'k19999' twice"):
        read_questions(tmp_path / "x.jsonl", {}, "qa")


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.attack(
    tried="A file of one megabyte whose twenty thousand rows have a key of their own each",
    wall="a value that a row lacks takes neither time nor space, and a file has ten thousand different keys at most",
    effect="one sentence",
)
def test_rows_with_keys_of_their_own_take_no_more_than_their_values(tmp_path: Path, suffix: str) -> None:
    def rows(count: int) -> Path:
        shared = {"question": "q?", "answers": "x"}
        return write(tmp_path / f"{count}{suffix}", [shared | {f"k{number}": number} for number in range(count)])

    for read in (read_rows, lambda path: read_questions(path, {}, "qa")):
        read(rows(10))  # what is imported or made once
        assert calls(read, rows(400)) < 2.5 * calls(read, rows(200))
        with pytest.raises(ConfigError, match="cannot be read: its objects have more than 10000 different keys"):
            read(rows(10_001))
    found = read_rows(rows(400))
    assert sum(map(len, found)) == 1200
    assert (found[0]["k0"], found[0]["k399"]) == (0, None)
    assert len(read_questions(rows(400), {}, "qa")) == 400


@pytest.mark.attack(
    tried="Answers that are objects with a key of their own each, which as a table are the square of what they were",
    wall="objects of a column that have few of its keys are refused before a table is made of them",
    effect="one sentence",
)
def test_objects_of_a_column_have_a_fair_part_of_its_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"question": "q?", "answers": {f"k{number}": "x"}} for number in range(9000)])
    with pytest.raises(ConfigError, match="the objects in 'answers' have 9000 different keys, of which each has few"):
        read_questions(path, {}, "qa")


@pytest.mark.attack(
    tried="A few megabytes of zeros, spaces, lines or rows that unpack to gigabytes, and a sparse file that is one line",
    wall="text that is packed, or read whole, has a gigabyte at most, and a line a part of that",
    effect="one sentence",
)
def test_a_small_file_does_not_unpack_to_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_table, "TEXT_BYTES", 8 << 20)
    monkeypatch.setattr(json_table, "LINE_BYTES", 1 << 20)
    unpacks, line = "has more than 8 MB unpacked; cut it into several files", "line 1 has more than 1 MB"
    for name, repeated, words in (
        ("x.jsonl.gz", b"\0", line),
        ("x.jsonl.gz", b" " * 999_999 + b"\n", unpacks),
        ("x.jsonl.gz", b'{"question": "%s", "answers": "x"}\n' % (b"q" * 999_000), unpacks),
        ("x.json.gz", b"\0", unpacks),
    ):
        (tmp_path / name).write_bytes(gzip.compress(repeated * ((16 << 20) // len(repeated))))
        for read in (read_rows, lambda path: read_questions(path, {}, "qa")):
            with pytest.raises(ConfigError, match=words):
                read(tmp_path / name)
    for name, words in (("x.jsonl", line), ("x.json", "has more than 8 MB; cut it into several files")):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 40)
        with pytest.raises(ConfigError, match=words):
            read_rows(tmp_path / name)
    row = {"question": "q" * 900_000, "answers": "x"}
    assert len(read_rows(write(tmp_path / "long.jsonl", [row] * 10))) == 10
