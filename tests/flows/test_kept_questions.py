"""The file of kept questions: whole lines, whatever happens."""

import json
import multiprocessing
import resource
from pathlib import Path

import pytest

from nbrl.flows.ask.kept import keep_question
from nbrl.infra.errors import StorageError


def lines(path: Path) -> list[str]:
    return [json.loads(line)["question"] for line in path.read_text().splitlines()]


def test_a_line_that_its_owner_did_not_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    path.write_text('{"question": "mine"}')
    keep_question(path, "first", ["1"])
    keep_question(path, "second", ["2", " "])
    assert lines(path) == ["mine", "first", "second"]
    assert json.loads(path.read_text().splitlines()[2])["answers"] == ["2"]


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    keep_question(path, "first", ["1"])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 30, limits[1]))
    try:
        with pytest.raises(StorageError, match="cannot be written"):
            keep_question(path, "second", ["2"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    keep_question(path, "second", ["2"])
    assert lines(path) == ["first", "second"]


def keep_many(path: str, number: int) -> None:
    for count in range(20):
        keep_question(Path(path), f"{number} {count} " + "x" * 20_000, ["1"])


@pytest.mark.process
def test_several_processes_keep_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "k.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=keep_many, args=(str(path), number)) for number in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len({line.partition("x")[0] for line in lines(path)}) == 60
