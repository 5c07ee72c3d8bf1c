"""A process that works on a run is asked to stop by a mark on the storage."""

import asyncio
import time
from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError, StoppedError
from nbrl.tasks.layout.runs import EVALUATIONS
from nbrl.tasks.runs import stop, writer
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.lease import Lease, holder
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.writer import writing

RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BEAT_S", 0.02)
    monkeypatch.setattr(stop, "POLL_S", 0.01)


@pytest.fixture(params=[RUN, RUN.model_copy(update={"kind": EVALUATIONS})], ids=["run", "evaluation"])
def run(request: pytest.FixtureRequest) -> Run:
    return request.param


@pytest.fixture
def storage(tmp_path: Path, run: Run) -> Storage:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_json(run.layout.identity, run.model_dump(mode="json"))
    return storage


def test_the_holder_ends_leaves_no_mark_and_the_run_is_free(storage: Storage, run: Run) -> None:
    said: list[str] = []

    async def both() -> None:
        async with writing(run, storage, False, said.append):
            await asyncio.gather(asyncio.to_thread(stop.stop, storage, run.layout, said.append), asyncio.sleep(60))

    began = time.monotonic()
    with pytest.raises(StoppedError, match="was stopped by `nbrl stop`"):
        asyncio.run(both())
    assert time.monotonic() - began < 30
    assert holder(storage, run.layout) is None
    assert not [key for key in storage.list(run.layout.folder) if "/stops/" in key]
    assert "is asked to stop" in said[0]


def test_a_mark_for_an_earlier_start_stops_no_later_one(storage: Storage, run: Run) -> None:
    earlier = take(storage, run.layout)
    storage.create_json(run.layout.stop(earlier.name), {"asked": 0.0})

    async def once() -> None:
        async with writing(run, storage, False, lambda said: None):
            await asyncio.sleep(0.2)

    asyncio.run(once())


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "never begun"])
def test_a_run_that_nobody_works_on_is_one_sentence(storage: Storage, run: Run, ended: bool) -> None:
    if ended:
        held = Lease(epoch=take(storage, run.layout), beat=time.time(), ended=True)
        storage.write_json(run.layout.lease, held.model_dump())
    with pytest.raises(ConfigError, match=r"no process works on (run|evaluation) 'r'; there is nothing to stop"):
        stop.stop(storage, run.layout, lambda said: None)
