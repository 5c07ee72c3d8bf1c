"""How a run starts and goes on: its questions are read once, and not at all where they are on storage."""

import importlib
import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.preflight import preflight, prepared
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.warnings import review


def begun(folder: Path, *overrides: str) -> tuple[list[str], Storage]:
    """The settings of the run `a` with questions of files and an attached file, and its storage."""
    (folder / "note.txt").write_text("a note")
    (folder / "p.jsonl").write_text('{"passage": "Tea is hot."}\n')
    rows = [{"question": f"{n}?", "answers": "x", "files": ["note.txt"]} for n in range(4)]
    for name in ("t", "h"):
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    mine = {"kind": "files", **{key: str(folder / f"{key[0]}.jsonl") for key in ("train", "held_out")}}
    mine |= {"corpus": str(folder / "p.jsonl")}
    settings = [f"environments={{mine: {json.dumps(mine)}}}", "rollout.prompts=2", f"storage.root={folder}/root", *overrides]
    return settings, Storage(StorageSettings(root=f"{folder}/root"))


@pytest.mark.process
def test_a_start_reads_the_questions_once_and_keeps_them_no_longer_than_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, storage = begun(tmp_path)
    read = Mock(side_effect=FilesEnvironment.load)
    monkeypatch.setattr(FilesEnvironment, "load", lambda *given: read(*given))
    start = prepared("tiny-cpu", settings, "train", "a")
    (warning,) = review(start)
    assert "4 of 4 held-out questions are training questions too" in warning
    with opened(start, "a", storage) as run:
        assert start.tables is None
    assert read.call_count == 1
    assert stored.read(storage, run.layout.data, "train")["question"].to_pylist() == ["0?", "1?", "2?", "3?"]


@pytest.mark.process
def test_a_run_goes_on_without_the_files_of_its_questions_and_refuses_other_settings(tmp_path: Path) -> None:
    settings, storage = begun(tmp_path)
    with opened(prepared("tiny-cpu", settings, "train", "a"), "a", storage) as run:
        questions = stored.read(storage, run.layout.data, "train")
    for path in (*tmp_path.glob("*.jsonl"), tmp_path / "note.txt"):
        path.unlink()
    for start in (
        preflight(resumed_config(storage, "a", ["iterations=77"]), "train", "a"),
        prepared("tiny-cpu", settings, "train", "a"),
    ):
        assert start.tables is None
        assert review(start) == []
        with opened(start, "a", storage) as again:
            assert again == run
            assert stored.read(storage, run.layout.data, "train") == questions
            stored.check(storage, run.layout.data)
    with pytest.raises(ConfigError, match=r"data file .*t\.jsonl does not exist"):
        prepared("tiny-cpu", settings, "train", "b")
    for change, words in (
        ("environments.mine.rule=number", r"environments\.mine\.rule is \"number\", the run began with \"qa\""),
        (f"environments.mine.corpus={tmp_path}/other.jsonl", r"environments\.mine\.corpus is "),
        ("environments={other: {kind: world}}", r"environments\.other\.weight is 1\.0, the run began with not set"),
    ):
        with pytest.raises(ConfigError, match=rf"run 'a' exists with another configuration: .*{words}"):
            prepared("tiny-cpu", [*settings, change], "train", "a")
    storage.write_bytes(run.layout.data.split("train"), b"damaged")
    with pytest.raises(DamagedError):
        prepared("tiny-cpu", settings, "train", "a")


@pytest.mark.sandbox
def test_a_run_goes_on_with_the_class_that_scores_it_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "ours" / "scoring.py"
    module.parent.mkdir()
    module.write_text(
        "from nbrl.tasks.own import Question, Score, Tasks\n\n\nclass Mine(Tasks):\n    def questions(self, split):\n"
        "        return [Question(f'{split} {n}?') for n in range(4)]\n\n"
        "    def score(self, trajectory, reference):\n        return Score(True)\n"
    )
    monkeypatch.syspath_prepend(str(module.parent))
    settings = ["environments={mine: {kind: own, place: 'scoring:Mine', tools: []}}", "rollout.prompts=2"]
    settings += [f"storage.root={tmp_path}/root"]
    storage = Storage(StorageSettings(root=f"{tmp_path}/root"))
    with opened(prepared("tiny-cpu", settings, "train", "a"), "a", storage) as run:
        pass
    assert prepared("tiny-cpu", settings, "train", "a").tables is None
    source = module.read_text()
    module.write_text(f"{source}\n")
    with pytest.raises(ConfigError, match=r"the source of environments\.mine has changed since it began"):
        prepared("tiny-cpu", settings, "train", "a")
    module.unlink()
    importlib.invalidate_caches()
    with pytest.raises(
        ConfigError, match=r"the code of environments\.mine, which scores, is not found on this machine; bring it"
    ):
        preflight(resumed_config(storage, run.name, []), "train", run.name)
