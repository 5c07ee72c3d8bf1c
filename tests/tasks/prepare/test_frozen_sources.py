"""Files of questions that grow while they are prepared."""

from pathlib import Path

from nbrl.tasks.prepare.frozen import frozen
from nbrl.tasks.prepare.settings import QuestionSource


def source(name: str, path: Path | str) -> QuestionSource:
    return QuestionSource(name=name, path=path, licence="private")


def test_what_is_added_later_is_not_found_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "kept.v1.jsonl").write_text("one\n")
    (tmp_path / "more.jsonl").write_text("another\n")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "folder").mkdir()
    given = [
        source("kept", tmp_path / "kept.v1.jsonl"),
        source("kept.v1", tmp_path / "more.jsonl"),
        source("empty", tmp_path / "empty.jsonl"),
        source("later", tmp_path / "later.jsonl"),
        source("folder", tmp_path / "folder"),
        source("many", tmp_path / "*.csv"),
        source("web", "s3://bucket/questions.csv"),
    ]
    first = frozen(given, tmp_path / "night/sources")
    assert [each.name for each in first] == ["kept", "kept.v1", "folder", "many", "web"]
    for name in ("kept.v1", "empty", "later"):
        with (tmp_path / f"{name}.jsonl").open("a") as file:
            file.write("two\n")
    again = frozen(given, tmp_path / "night/sources")
    assert again == first
    assert [each.path for each in again] == [each.path for each in first]
    assert isinstance(again[0].path, Path)
    assert again[0].path.read_text() == "one\n"
