"""Questions, sources and demonstrations at addresses: on a real S3 server, and on a hub of this machine."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pyarrow as pa
import pytest
from pydantic import ValidationError

from nbrl.infra import remote_files
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.files import read_passages, read_questions
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.question_file import content_of, is_question_file, settings_of
from nbrl.tasks.prepare.preflight import check as check_preparation
from nbrl.tasks.prepare.preflight import load as load_preparation
from nbrl.tasks.warmstart.recipe import source_of
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations
from nbrl.tasks.warmstart.sources.recorded import RecordedDemonstrations
from tests.clouds import s3_server
from tests.hub_server import hub_server

ROWS = [{"question": f"q{n}?", "answers": [str(n)]} for n in range(3)]
TALK = {"messages": [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]}


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with s3_server(tmp_path_factory.mktemp("s3")) as variables:
        yield variables


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    return tmp_path / "user/.cache/nbrl/files"


@pytest.fixture
def s3(server: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    return Storage(StorageSettings(root=f"s3://bucket/{tmp_path.name}"), patience_s=0)


def asked(address: str) -> list[str]:
    environment = FilesEnvironment.model_validate({"kind": "files", "held_out": address})
    return environment.load("environments.mine").held_out["question"].to_pylist()


@pytest.mark.process
def test_a_file_a_pattern_and_a_folder_of_a_bucket_are_read_as_local_ones(s3: Storage, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for place, row in enumerate(ROWS[:2]):
        s3.write_bytes(f"data/train-{place}.jsonl", lines(row))
        (tmp_path / f"data/train-{place}.jsonl").write_bytes(lines(row))
    for name in ("readme.md", ".train-9.jsonl", "deeper/train-9.jsonl"):
        s3.write_bytes(f"data/{name}", lines(ROWS[2]))
    for name in ("data/train-1.jsonl", "data/train-[0-1].jsonl", "data/"):
        here = read_questions(tmp_path / name, {}, "qa")
        assert read_questions(s3.uri(name), {}, "qa").equals(here)
    assert not [path for path in cache.rglob("*") if path.name in ("readme.md", ".train-9.jsonl", "deeper")]
    assert content_of(s3.uri("data")) == content_of(str(tmp_path / "data"))


@pytest.mark.process
def test_packed_text_parquet_and_a_corpus_keep_their_formats(s3: Storage, tmp_path: Path) -> None:
    with pa.CompressedOutputStream(str(tmp_path / "x.zst"), "zstd") as packed:
        packed.write(lines(*ROWS))
    s3.write_bytes("train.jsonl.zst", (tmp_path / "x.zst").read_bytes())
    s3.write_table("q.parquet", pa.Table.from_pylist(ROWS))
    s3.write_bytes("corpus.csv", b"passage\nOne.\n")
    for name in ("train.jsonl.zst", "q.parquet"):
        assert asked(s3.uri(name)) == [row["question"] for row in ROWS]
    assert read_passages(s3.uri("corpus.csv"), "c")["passage"].to_pylist() == ["One."]


@pytest.mark.process
def test_an_object_is_fetched_once_and_anew_when_it_has_changed_or_the_copy_is_cut(
    s3: Storage, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetches: list[str] = []
    fetch = remote_files._fetch
    monkeypatch.setattr(remote_files, "_fetch", lambda *given: (fetches.append(given[1]), fetch(*given)))
    for times, row in enumerate(ROWS[:2], 1):  # of the same size
        s3.write_bytes("q.jsonl", lines(row))
        assert [asked(s3.uri("q.jsonl")) for _ in range(2)] == [[row["question"]]] * 2
        assert len(fetches) == times
    for copy in cache.rglob("q.jsonl"):
        copy.write_bytes(b"")
    assert asked(s3.uri("q.jsonl")) == ["q1?"]
    assert len(fetches) == 3


@pytest.mark.process
def test_several_readers_at_once_get_whole_files(s3: Storage, cache: Path) -> None:
    for number in range(4):
        s3.write_bytes(f"many/{number}.jsonl", lines(ROWS[number % 3]))
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(asked, [s3.uri("many")] * 3)]
    assert found == [["q0?", "q1?", "q2?", "q0?"]] * 3
    assert len([*cache.glob("*/many")]) == 1
    assert not [*(cache / "partial").iterdir()]


@pytest.mark.process
def test_what_a_bucket_does_not_hold_is_one_sentence(s3: Storage) -> None:
    s3.write_bytes("data/a.jsonl", b"{")
    s3.write_bytes("data/b.jsonl", lines(ROWS[0] | {"files": "picture.png"}))
    s3.write_bytes("data/c\u202e.jsonl", lines(*ROWS))
    s3.write_bytes("text/readme.md", b"x")
    s3.write_bytes("splits/dataset_dict.json", b"{}")
    for name, words in {
        "data/none-*.jsonl": r"none-\*.jsonl matches no object; correct it",
        "text": "text has no files of the formats that are read",
        "data/a.jsonl": f"^data file {s3.uri('data/a.jsonl')} cannot be read: line 1",
        "data/b.jsonl": "names the file 'picture.png'; fetch the data set into a folder, with its files beside it",
        "data/*": r"there is an object named 'c\\u202e.jsonl', which can be the name of no file here; rename it",
        "splits": f"^{s3.uri('splits')} has several splits, as its dataset_dict.json says; name the folder of one",
    }.items():
        with pytest.raises(ConfigError, match=words):
            asked(s3.uri(name))


@pytest.mark.process
def test_what_a_bucket_does_not_give_is_one_sentence(s3: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.write_bytes("b.jsonl", lines(*ROWS))
    with pytest.raises(ConfigError, match=r"^environments\.mine: s3://nowhere/x\.jsonl does not exist; correct it"):
        asked("s3://nowhere/x.jsonl")
    monkeypatch.setattr(remote_files, "MOST_BYTES", 1)
    with pytest.raises(ConfigError, match="name a part of it by a pattern"):
        asked(s3.uri("b.jsonl"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "other")
    with pytest.raises(ConfigError, match=r"may not be read .*; set AWS_ACCESS_KEY_ID"):
        asked(s3.uri("b.jsonl"))
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(ConfigError, match=r"Unable to locate credentials.; set AWS_ACCESS_KEY_ID"):
        asked(s3.uri("b.jsonl"))


class HostileBucket:
    """Lists these keys, page after page, for ever if it is `endless`."""

    def __init__(self, keys: list[str], endless: bool = False) -> None:
        self.keys, self.endless, self.pages = keys, endless, 0

    def call_s3(self, method: str, **request: str) -> dict[str, Any]:
        self.pages += 1
        contents = [{"Key": key, "Size": 2, "ETag": "e"} for key in self.keys]
        return {"Contents": contents, "IsTruncated": self.endless, "NextContinuationToken": "more"}

    def info(self, path: str) -> dict[str, Any]:
        return {"type": "directory", "name": path}

    def get_file(self, path: str, target: str) -> None:
        Path(target).write_bytes(b"{}")

    def invalidate_cache(self) -> None: ...


@pytest.mark.parametrize(
    "key",
    ["data/..", "data/../../../out.jsonl", "data//out.jsonl", "/out.jsonl", "../out.jsonl", "data/a\n.jsonl", "data/a\0.jsonl"],
)
@pytest.mark.parametrize("address", ["s3://bucket/data", "s3://bucket/data/*"])
@pytest.mark.attack(
    tried="An object whose key leads out of the folder of copies, or has control characters",
    wall="of a key only what follows its folder is used, where a file can have that name",
    effect="it is left out, or one sentence; nothing is written",
)
def test_no_key_leads_out_of_the_folder_of_copies(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path, key: str, address: str
) -> None:
    monkeypatch.setattr(remote_files, "s3_files", lambda: HostileBucket([key]))
    with pytest.raises(ConfigError, match=r"has no files|matches no object|which can be the name of no file here"):
        asked(address)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.attack(
    tried="A folder of a bucket whose listing never ends, or a file that has other bytes than the listing says",
    wall="ten pages of a listing are read; a copy is compared with the listing",
    effect="one sentence",
)
def test_a_listing_without_end_and_other_bytes_than_listed_are_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    endless = HostileBucket([f"data/{n}.jsonl" for n in range(1000)], endless=True)
    monkeypatch.setattr(remote_files, "s3_files", lambda: endless)
    with pytest.raises(ConfigError, match="s3://bucket/data holds more than 10000 objects"):
        asked("s3://bucket/data")
    assert endless.pages == 11
    monkeypatch.setattr(remote_files, "s3_files", lambda: HostileBucket(["data/x.jsonl"]))
    monkeypatch.setattr(HostileBucket, "get_file", lambda self, path, target: Path(target).write_bytes(b"more"))
    with pytest.raises(ConfigError, match="was changed while it was fetched; use the same command again"):
        asked("s3://bucket/data")
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_files_of_a_data_set_on_the_hub_are_read_by_their_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "hub/data"
    data.mkdir(parents=True)
    for place, row in enumerate(ROWS[:2]):
        (data / f"train-{place}.jsonl").write_bytes(lines(row))
    with hub_server(tmp_path / "hub") as address:
        monkeypatch.setattr(huggingface_hub, "HfFileSystem", partial(huggingface_hub.HfFileSystem, endpoint=address))
        for path in ("data/train-*.jsonl", "data", "data/train-1.jsonl"):
            for revision in ("", "@main"):
                assert asked(f"hf://datasets/me/sums{revision}/{path}") == (["q1?"] if "1" in path else ["q0?", "q1?"])
        (data / "train-1.jsonl").write_bytes(lines(ROWS[2]))
        assert asked("hf://datasets/me/sums/data/train-1.jsonl") == ["q2?"]
        for path in ("me/sums/data/none.jsonl", "me/none/data/x.jsonl"):
            with pytest.raises(ConfigError, match=f"{path} does not exist, or is private; correct it, or set HF_TOKEN"):
                asked(f"hf://datasets/{path}")
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ConfigError, match=r"offline mode is enabled.*; look at the network, HF_ENDPOINT and HF_HUB_OFFLINE"):
            asked("hf://datasets/me/sums/data/train-0.jsonl")


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("https://host/q.jsonl", "another kind than those that are read, s3://bucket/path or hf://datasets/owner/name/path"),
        ("gs://bucket/q.jsonl", "another kind"),
        ("file:///etc/passwd", "another kind"),
        ("s3://bucket", "is no address of files; write it as s3://"),
        ("s3://key:secret@bucket/q.jsonl", "is no address of files"),
        ("s3://bucket/a/../q.jsonl", "is no address of files"),
        ("s3://bucket/a\n.jsonl", "is no address of files"),
        ("hf://owner/name/q.jsonl", "is no address of files"),
        ("s3://bucket/*/q.jsonl", "only its last part may be one"),
        (5, "it must be a path or an address"),
    ],
)
def test_what_is_no_address_of_files_is_refused_before_anything_is_asked(address: object, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        FilesEnvironment.model_validate({"kind": "files", "held_out": address})


def test_an_address_stays_as_it_is_in_stored_settings() -> None:
    address = "s3://bucket/a//".rstrip("/")
    environment = FilesEnvironment.model_validate({"kind": "files", "train": "x.jsonl", "held_out": address})
    assert environment.train == Path("x.jsonl")
    assert environment.model_dump(mode="json")["held_out"] == address
    assert is_question_file(address)
    assert settings_of(address, {}, "")["environments"]["questions"]["held_out"] == address


@pytest.mark.process
def test_a_preparation_reads_sources_and_evaluation_files_by_their_addresses(s3: Storage, tmp_path: Path) -> None:
    for place, row in enumerate(ROWS):
        s3.write_bytes(f"raw/train-{place}.jsonl", lines(row))
    s3.write_bytes("test.jsonl", lines(ROWS[0]))
    recipe = tmp_path / "recipe.yaml"
    source = {"name": "a", "path": s3.uri("raw/train-*.jsonl"), "licence": "MIT"}
    recipe.write_text(json.dumps({"sources": [source], "evaluation": [{"name": "e", "path": s3.uri("test.jsonl")}]}))
    assert check_preparation(load_preparation(recipe), tmp_path / "out") == ({"a": 3}, {"a": 3}, {"e": 1})


@pytest.mark.process
def test_a_warm_start_reads_demonstrations_by_their_addresses(s3: Storage) -> None:
    s3.write_bytes("talk.jsonl", lines(TALK))
    s3.write_bytes("none/x.json", b"{}")
    source = source_of(s3.uri("talk.jsonl"), s3)
    assert source == {"kind": "chat", "path": s3.uri("talk.jsonl")}
    chat = ChatDemonstrations.model_validate(source)
    chat.check()
    ((name, file),) = chat.files().items()
    assert (name, file.read_bytes()) == (s3.uri("talk.jsonl"), lines(TALK))
    recorded = RecordedDemonstrations(kind="recorded", path=s3.uri("none"))
    with pytest.raises(ConfigError, match=f"^{s3.uri('none/x.json')} cannot be read"):
        recorded.check()
