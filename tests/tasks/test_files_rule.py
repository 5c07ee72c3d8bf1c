"""Files that the agent made, compared with those that were expected; and files that questions come with."""

import json
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.reward.rules import files
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.runs.recipes import load
from tests.tasks.scripted import play

TABLE = b"name,height\nElm,12.5\nOak,20\n"


@pytest.mark.parametrize(
    ("name", "produced", "expected", "worth"),
    [
        ("a.csv", b"name, height\r\nElm,12.50\r\nOak,20.0\r\n\r\n", TABLE, 1.0),
        ("a.csv", b"name,height\nElm,12.5\nOak,21\n", TABLE, 5 / 6),
        ("a.csv", b"name,height\nElm,12.5\n", TABLE, 4 / 6),
        ("a.csv", TABLE + b"Fir,1\nAsh,2\n", TABLE, 6 / 10),
        ("a.csv", b"\xff\xfe", TABLE, 0.0),
        ("a.csv", b"x," * 300_000, TABLE, 0.0),
        ("a.tsv", b"a\t1.0", b"a\t1", 1.0),
        ("a.csv", b"1e-05,1e+20,.5", b"0.00001,100000000000000000000,0.5", 1.0),
        ("a.csv", b"-2.50E3,1e999,-.5", b"-2500,10e998,-0.50", 1.0),
        ("a.csv", b"1e5,.,1e,e5", b"10,0,1,5", 0.0),
        ("a.csv", b"00501,1e0001", b"501,10", 0.0),
        ("a.csv", b"1e9999999999,1" + b"0" * 30, b"1e9999999998,1e30", 0.0),
        ("a.json", b'{"b": [1.0, 2], "a": "x"}', b'{"a": "x", "b": [1, 2.0000000001]}', 1.0),
        ("a.json", b'{"a": true}', b'{"a": 1}', 0.0),
        ("a.json", b"[" * 100_000, b"[1]", 0.0),
        ("a.json", b"1" + b"0" * 4_000, b"1.0", 0.0),
        ("a.json", b"not json", b"{}", 0.0),
        ("a.txt", b" one\ntwo \n", b"one\ntwo", 1.0),
        ("a.txt", b"one\nthree", b"one\ntwo", 0.5),
        ("a.bin", b"\x00\x01", b"\x00\x02", 0.0),
        ("a.bin", b"\x00\x01", b"\x00\x01", 1.0),
    ],
)
def test_a_file_is_compared_by_what_its_name_says_it_is(name: str, produced: bytes, expected: bytes, worth: float) -> None:
    assert files.share(name, produced, expected) == pytest.approx(worth)


def test_whole_numbers_of_json_are_equal_exactly_and_what_is_beyond_floats_equals_nothing() -> None:
    for one, other in (("1234567", "1234568"), ("1999999", "2000000"), ("1e400", "1e401"), ("2000000.0", "1999999")):
        assert files.share("a.json", one.encode(), other.encode()) == 0.0
    for one, other in (("1234567", "1234567.0"), ("0.30000000000000004", "0.3"), ("1e3", "1000")):
        assert files.share("a.json", one.encode(), other.encode()) == 1.0
    assert files.share("a.csv", b"0.30000000000000004,1", b"0.3,1") == 1.0


def test_all_files_must_be_right_and_others_do_not_count() -> None:
    reference = files.reference_of({"a.csv": TABLE, "b.txt": b"yes"})
    assert files.judge({"a.csv": TABLE, "b.txt": b"yes", "c": b""}, reference) == Judged(1.0, 1.0)
    assert files.judge({"a.csv": TABLE}, reference) == Judged(0.0, 0.5)
    assert files.judge({}, reference) == Judged(0.0, 0.0)


def questions(folder: Path) -> FilesEnvironment:
    """A question with a table and the file that has to be made of it."""
    (folder / "trees").mkdir()
    (folder / "trees/trees.csv").write_bytes(TABLE)
    (folder / "tallest.csv").write_text("name,height\nOak,20\n")
    row = {"question": "Write the tallest tree to tallest.csv.", "files": "trees/trees.csv", "expected": ["tallest.csv"]}
    path = folder / "q.jsonl"
    path.write_text(json.dumps(row | {"rule": "files"}) + "\n")
    return FilesEnvironment(kind="files", train=path, held_out=path)


def test_paths_outside_the_folder_of_the_questions_are_refused(tmp_path: Path) -> None:
    for field in ("files", "expected"):
        path = tmp_path / "q.jsonl"
        path.write_text(json.dumps({"question": "?", "answers": "x", "rule": "files", field: "../../etc/passwd"}) + "\n")
        environment = FilesEnvironment(kind="files", train=path, held_out=path)
        with pytest.raises(ConfigError, match="which is not in its folder"):
            environment.load("environments.e")
        path.write_text(json.dumps({"question": "?", "answers": "x", "rule": "files", field: "none.csv"}) + "\n")
        with pytest.raises(ConfigError, match="cannot be read: No such file or directory; bring it"):
            environment.load("environments.e")
    path.write_text(json.dumps({"question": "?", "answers": "x", "rule": "files"}) + "\n")
    with pytest.raises(ConfigError, match="expects no file; name some in the column expected"):
        environment.load("environments.e")


@pytest.mark.parametrize("files", [7, [["a.csv"]], {"a.csv": 1}, "a\nb.csv", "a\0b.csv", "-rf.csv"])
def test_files_that_are_no_paths_or_have_odd_names_are_refused_in_words(tmp_path: Path, files: Any) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(json.dumps({"question": "?", "answers": "x", "files": files}) + "\n")
    (tmp_path / "-rf.csv").touch()
    with pytest.raises(ConfigError, match=r"give a path, or a list of paths|take letters, digits|the column 'files'"):
        FilesEnvironment(kind="files", train=path, held_out=path).load("environments.e")


def test_a_column_expected_of_questions_with_another_rule_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    path.write_text("question,answers,expected\n2 + 2?,4,4\n")
    loaded = FilesEnvironment(kind="files", train=path, held_out=path).load("environments.e")
    assert loaded.train.select(["answers", "collect"]).to_pylist() == [{"answers": ["4"], "collect": []}]


CELLS = {
    "right": "lines = open('trees.csv').read().splitlines()\nopen('tallest.csv', 'w').write(lines[0] + '\\n' + lines[2])",
    "link": "import os\nos.symlink('/etc/passwd', 'tallest.csv')",
    "large": "open('tallest.csv', 'w').write('x' * 3_000_000)",
    "nothing": "print(open('trees.csv').read())",
}


@pytest.mark.sandbox
def test_attached_files_are_in_the_working_folder_and_what_was_made_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = {"trees": questions(tmp_path)}
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write(environments, storage, layout)
    stored.check(storage, layout)
    config = load("tiny-cpu", ["agent.context_tokens=900", "agent.action_tokens=400"])
    prompts = stored.read(storage, layout, "train")
    prompts = prompts.append_column("group", prompts["id"])
    rows = task_rows(prompts, len(CELLS), 0)
    places = {"trees": EnvironmentPlan(None, (), "Be brief.")}
    cells = [[code, "submit_final_answer('done')"] for code in CELLS.values()]
    table = play(monkeypatch, config, storage, layout, places, rows, cells)
    made = from_table(table)
    assert [each.status for each in made] == [Status.ANSWERED] * len(CELLS), [each.failure for each in made]
    assert all(each.question.endswith("Files in the working folder:\n- trees.csv") for each in made)
    assert [[file.path for file in each.files] for each in made] == [["tallest.csv"], [], [], []]
    assert "Elm,12.5" in made[3].steps[0].observation
    assert all("root:" not in str(each.files) for each in made)
    scored = score_table(with_references(table, prompts), RewardSettings())
    assert scored["success"].to_pylist() == [1.0, 0.0, 0.0, 0.0]
    assert scored["environment"].to_pylist() == ["trees"] * len(CELLS)
    tokenizer = ChatTokenizer.load(config.policy.path, config.agent)
    assert "\nBe brief." in tokenizer.decode(made[0].nodes[0].token_ids)
