"""The environments of a run on storage: mixed, and read back."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Environment, WorldEnvironment
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment, HubEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.evaluate import first_of_each
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load

LAYOUT = DataLayout("data")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path / "root")))


def world(**fields: Any) -> WorldEnvironment:
    return WorldEnvironment(kind="world", train=8, held_out=4, **fields)


def own(folder: Path, *answers: str, **fields: Any) -> FilesEnvironment:
    path = folder / "own.jsonl"
    path.write_text("".join(json.dumps({"question": f"What is {n}?", "answers": each}) + "\n" for n, each in enumerate(answers)))
    return FilesEnvironment(kind="files", train=path, held_out=path, **fields)


def test_of_several_environments_every_id_says_whose_it_is_and_of_one_none_does(tmp_path: Path, storage: Storage) -> None:
    both: dict[str, Environment] = {"world": world(), "other": world(seed=1), "own": own(tmp_path, "1", "2")}
    stored.write(both, storage, LAYOUT)
    train = stored.read(storage, LAYOUT, "train")
    assert train["environment"].to_pylist() == ["world"] * 8 + ["other"] * 8 + ["own"] * 2
    assert all(
        one.startswith(f"{name}:") for one, name in zip(*train.select(["id", "environment"]).to_pydict().values(), strict=True)
    )
    places = stored.corpora(storage, LAYOUT, both)
    assert sorted(places) == ["other", "world"]
    assert len({place.digest for place in places.values()}) == 2
    alone = DataLayout("alone")
    stored.write({"own": both["own"]}, storage, alone)
    assert stored.read(storage, alone, "train")["id"].to_pylist() == ["own-000000", "own-000001"]


def test_an_environment_of_weight_0_is_only_evaluated(tmp_path: Path, storage: Storage) -> None:
    mixed: dict[str, Environment] = {"world": world(), "own": own(tmp_path, "1", weight=0.0)}
    stored.write(mixed, storage, LAYOUT)
    assert set(stored.read(storage, LAYOUT, "train")["environment"].to_pylist()) == {"world"}
    assert stored.read(storage, LAYOUT, "held_out")["environment"].to_pylist() == ["world"] * 4 + ["own"]
    with pytest.raises(ConfigError, match="every environment has weight 0"):
        check_config(load("tiny-cpu", ["environments.world.weight=0"]))


def test_the_first_questions_of_each_environment_are_evaluated(tmp_path: Path, storage: Storage) -> None:
    stored.write({"world": world(), "own": own(tmp_path, "1", "2", "3")}, storage, LAYOUT)
    held_out = stored.read(storage, LAYOUT, "held_out")
    assert first_of_each(held_out, 2)["environment"].to_pylist() == ["world"] * 2 + ["own"] * 2
    assert first_of_each(held_out, None).equals(held_out)


def test_a_table_or_file_that_is_not_what_was_written_is_damaged(tmp_path: Path, storage: Storage) -> None:
    environment = own(tmp_path, "1")
    (tmp_path / "note.txt").write_text("a note")
    rows = [{"question": "?", "answers": "x", "files": ["note.txt"]}]
    environment.held_out.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    stored.write({"own": environment}, storage, LAYOUT)
    stored.check(storage, LAYOUT)
    (file,) = stored.read(storage, LAYOUT, "train")["files"].to_pylist()[0]
    storage.write_bytes(LAYOUT.attached(file["digest"]), b"another note")
    with pytest.raises(DamagedError):
        stored.check(storage, LAYOUT)


def test_what_is_on_storage_is_checked_as_what_is_loaded(tmp_path: Path) -> None:
    storage, both = Storage(StorageSettings(root=str(tmp_path))), {"world": world(), "own": own(tmp_path, "1", "2")}
    stored.write(both, storage, LAYOUT)
    loaded, written = stored.contents_of(both, stored.load(both)), stored.contents(storage, LAYOUT, both)
    assert written is not None
    for name in both:
        for of in (loaded, written):
            assert (len(of[name].train), of[name].searchable) == (len(loaded[name].train), name == "world")
            assert of[name].rules == loaded[name].rules
    assert stored.contents(storage, DataLayout("elsewhere"), both) is None


@pytest.mark.parametrize("digest", ["../../elsewhere/abc", "/abc", "..", "", "a" * 63, "A" * 64, f"{'a' * 64}\n", 5, None, ["a"]])
@pytest.mark.attack(
    tried="A digest of passages that is a path, to have what lies there opened as their index",
    wall="a digest of a run's data is a SHA-256",
    effect="one sentence",
)
def test_a_digest_of_data_is_no_path(tmp_path: Path, digest: object) -> None:
    storage, layout = Storage(StorageSettings(root=str(tmp_path))), DataLayout("runs/r/data")
    key = layout.corpus("world")
    environments = load("tiny-cpu").environments
    storage.write_json(layout.digests, {key: "a" * 64})
    assert stored.corpora(storage, layout, environments)["world"].digest == "a" * 64
    storage.write_json(layout.digests, {key: digest})
    for read in (lambda: stored.corpora(storage, layout, environments), lambda: stored.check(storage, layout)):
        with pytest.raises(DamagedError, match=r"digests\.json has no SHA-256 of runs/r/data/corpus/world\.parquet"):
            read()


@pytest.mark.parametrize("written", ["{}", '{"sha256": null}', '{"runs/r/data/train.parquet": 5}', "[]", '"x"', "null", ""])
@pytest.mark.attack(
    tried="Digests of a run's data that name none of its tables, or are of another shape",
    wall="a table without its digest is not read",
    effect="one sentence",
)
def test_a_table_without_its_digest_is_not_read(tmp_path: Path, written: str) -> None:
    storage, environments = Storage(StorageSettings(root=str(tmp_path))), {"own": own(tmp_path, "1", "2")}
    stored.write(environments, storage, LAYOUT)
    storage.write_bytes(LAYOUT.digests, written.encode())
    for read in (
        lambda: stored.read(storage, LAYOUT, "train"),
        lambda: stored.contents(storage, LAYOUT, environments),
        lambda: stored.check(storage, LAYOUT),
    ):
        with pytest.raises(
            DamagedError, match=r"digests\.json (has no SHA-256 of .*train\.parquet|is damaged: ).*; bring it back"
        ):
            read()


def test_a_change_of_the_source_of_an_environment_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "changing.py"
    module.write_text(
        "from nbrl.tasks.own import Question, Tasks\n\n\nclass Mine(Tasks):\n    def questions(self, split):\n"
        "        return [Question(f'{split} {n}?') for n in range(40)]\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = ["environments={mine: {kind: own, place: 'changing:Mine'}}", f"storage.root={tmp_path}/root"]
    storage = Storage(StorageSettings(root=f"{tmp_path}/root"))
    open_run(load("tiny-cpu", settings), "a", storage)
    open_run(load("tiny-cpu", settings), "a", storage)
    module.write_text(module.read_text() + "\n# another score\n")
    with pytest.raises(ConfigError, match=r"the source of environments\.mine has changed since it began"):
        open_run(load("tiny-cpu", settings), "a", storage)


def test_a_data_set_of_the_hub_is_read_by_its_columns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from nbrl.tasks.environments.datasets import fetch

    asked: list[tuple[str, str, str]] = []

    def downloaded(repository: str, configuration: str, split: str) -> list[str]:
        asked.append((repository, configuration, split))
        table = pa.table({"problem": [f"{split} 1?", f"{split} 2?"], "solution": ["1", "2"]})
        if repository == "openai/gsm8k":
            table = pa.table({"question": [f"{split}?"], "answer": ["so\n#### 1,072"]})
        path = tmp_path / f"{len(asked)}.parquet"
        pa.parquet.write_table(table, path)
        return [str(path)]

    monkeypatch.setattr(fetch, "_downloaded", downloaded)
    columns = {"question": "problem", "answers": "solution"}
    other = HubEnvironment(kind="hub", dataset="me/sums", columns=columns, rule="number", limit=1).load("environments.e")
    assert other.train.select(["id", "question", "answers", "rule"]).to_pylist() == [
        {"id": "sums-train-000000", "question": "train 1?", "answers": ["1"], "rule": "number"}
    ]
    known = HubEnvironment(kind="hub", dataset="gsm8k").load("environments.e")
    assert known.held_out["answers"].to_pylist() == [["1,072"]]
    assert asked[-1] == ("openai/gsm8k", "main", "test")
    with pytest.raises(
        ConfigError, match=r"no column 'answer', which environments\.e\.columns\.answers names; there are: problem"
    ):
        HubEnvironment(kind="hub", dataset="me/sums", columns=columns | {"answers": "answer"}).load("environments.e")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dataset": "gsm8"}, "did you mean 'gsm8k'"),
        ({"dataset": "gsm8k", "rule": "qa"}, "configuration, columns and rule of gsm8k are known"),
        ({"dataset": "me/x", "columns": {"anwers": "a"}}, "did you mean 'answers'"),
    ],
)
def test_settings_of_a_data_set_that_cannot_work_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HubEnvironment.model_validate({"kind": "hub"} | fields)
