"""A large corpus is indexed once per host; neither a kill, nor a race, nor damage leaves a wrong index."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.infra.errors import InfraError
from nbrl.infra.home import Home
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout import corpora
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.rollout.plan import EnvironmentPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.work_queue import WorkQueue
from nbrl.tasks.runs.recipes import load

pytestmark = pytest.mark.process
PASSAGES = pa.chunked_array([[f"Town {number} lies on river {number % 11}" for number in range(10, 40)]])
FOUND = ["Town 17 lies on river 6"]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "IN_MEMORY", 10)


def never() -> pa.ChunkedArray:
    raise AssertionError("the passages were read again")


def opened(home: Path, said: list[str], read: Callable[[], pa.ChunkedArray] = lambda: PASSAGES) -> Corpus:
    return open_corpus(Home(home), "d1", read, said.append)


def test_an_index_is_made_once_and_is_told_of(tmp_path: Path) -> None:
    said: list[str] = []
    assert opened(tmp_path, said).retrieve("town 17", 1) == FOUND
    assert opened(tmp_path, said, never).retrieve("town 17", 1) == FOUND
    assert len(said) == 2
    assert said[0].startswith("indexing 30 passages for search, once on this machine; it takes about 0.0 GB of memory")
    assert said[1].startswith("indexed 30 passages: 0.00 GB in ")


def test_a_small_corpus_leaves_nothing_on_disk(tmp_path: Path) -> None:
    said: list[str] = []
    corpus = opened(tmp_path, said, lambda: PASSAGES.slice(0, 9))
    assert corpus.retrieve("town 15", 1) == ["Town 15 lies on river 4"]
    assert (said, list(tmp_path.iterdir())) == ([], [])


@pytest.mark.more
def test_other_content_has_another_index(tmp_path: Path) -> None:
    opened(tmp_path, [])
    other = open_corpus(Home(tmp_path), "d2", lambda: pa.chunked_array([["Vorn"] * 12]), print)
    assert (len(other), other.retrieve("town", 1)) == (12, [])


@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        *(pytest.param(name, marks=pytest.mark.more) for name in ("passages.arrow", "words.arrow", "indices.csc.index.npy")),
    ],
)
def test_a_damaged_index_is_made_again(tmp_path: Path, name: str) -> None:
    opened(tmp_path, [])
    [path] = tmp_path.glob(f"corpora/*/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 64
    path.write_bytes(data)
    said: list[str] = []
    assert opened(tmp_path, said).retrieve("town 17", 1) == FOUND
    assert len(said) == 2


@pytest.mark.more
def test_an_index_that_lost_a_file_is_made_again(tmp_path: Path) -> None:
    opened(tmp_path, [])
    next(tmp_path.glob("corpora/*/words.arrow")).unlink()
    assert opened(tmp_path, []).retrieve("town 17", 1) == FOUND


def test_of_several_at_once_one_makes_the_index(tmp_path: Path) -> None:
    said: list[str] = []
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(opened(tmp_path, said).retrieve("town 17", 1))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (found, len(said)) == ([FOUND] * 4, 2)


@pytest.mark.sandbox
def test_a_runner_says_that_it_indexes_and_another_takes_the_index(tmp_path: Path) -> None:
    async def started(plan: RunnerPlan) -> list[str]:
        runner = Runner(plan, 0, WorkQueue())
        try:
            await runner.start()
            return await runner.said()
        finally:
            await runner.stop()

    config, storage = load("tiny-cpu"), Storage(StorageSettings(root=str(tmp_path / "storage")))
    digest = storage.write_table("corpus", pa.table({"passage": PASSAGES}))
    home = Home(tmp_path / "home")
    environments = {"e": EnvironmentPlan(("corpus", digest))}
    model = PlacedFolder(config.policy.path)
    plan = RunnerPlan(model, environments, "files", storage, config.agent, config.sandbox, config.rollout, home)
    assert [sentence.partition(" ")[0] for sentence in asyncio.run(started(plan))] == ["indexing", "indexed"]
    storage.delete("corpus")
    assert asyncio.run(started(plan)) == []


MAKER = """
import sys, time
import pyarrow as pa
from nbrl.infra.home import Home
from nbrl.tasks.rollout import corpora
from nbrl.tasks.rollout.work_queue import WorkQueue
corpora.IN_MEMORY = 10
passages = pa.chunked_array([["Town lies on river " * 20] * 200_000])
corpora.open_corpus(Home(sys.argv[1]), "d1", lambda: passages, lambda text: print(text, flush=True))
"""


@pytest.mark.more
def test_a_kill_leaves_no_half_index_and_no_process(tmp_path: Path) -> None:
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(tmp_path)], stdout=subprocess.PIPE)
    assert maker.stdout is not None
    with maker:
        assert maker.stdout.readline().startswith(b"indexing 200,000 passages")
        while not list(tmp_path.glob("corpora/.*/passages.arrow")):
            time.sleep(0.02)
        maker.send_signal(signal.SIGKILL)
    assert not list(tmp_path.glob("corpora/d1-*"))
    said: list[str] = []
    assert opened(tmp_path, said).retrieve("town 17", 1) == FOUND
    assert (len(said), os.listdir(tmp_path / "corpora")) == (2, ["d1-1"])


def test_what_ends_the_indexing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora.index, "__name__", "nbrl.agent.tools.no_such_module")
    with pytest.raises(InfraError, match=r"could not be indexed: .*No module named.*; the log is .*corpus-index.log"):
        opened(tmp_path, [])
    assert os.listdir(tmp_path / "corpora") == []


def test_a_home_that_is_no_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "corpora").write_text("a file")
    with pytest.raises(InfraError, match=r"cannot be indexed in .*; make room, or set another home"):
        opened(tmp_path, [])
