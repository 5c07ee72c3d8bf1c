"""Who may write to a run: epochs, and the lease that tells of them."""

import asyncio
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nbrl.infra.errors import HeldError, InfraError
from nbrl.infra.process.identity import identity, is_running
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import StoppedError, TakenOverError
from nbrl.tasks.runs import lease, writer
from nbrl.tasks.runs.ending import SILENT, Ending
from nbrl.tasks.runs.epochs import check_newest, newest, take
from nbrl.tasks.runs.lease import Lease, check_free, last_ending
from nbrl.tasks.runs.opening import drop
from nbrl.tasks.runs.run import Run, find_run
from nbrl.tasks.runs.writer import writing

RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})
ELSEWHERE = "another-machine/boot/pid:[1]/77/123"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_json(RUN.layout.identity, RUN.model_dump(mode="json"))
    return storage


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "BEAT_S", 0.02)
    monkeypatch.setattr(writer, "POLL_S", 0.01)


def held_by(storage: Storage, process: str, age: float = 0.0, ended: bool = False) -> Lease:
    epoch = take(storage, RUN.layout).model_copy(update={"process": process, "host": "another-machine"})
    held = Lease(epoch=epoch, beat=time.time() - age, ended=ended)
    storage.write_json(RUN.layout.lease, held.model_dump())
    return held


def enter(storage: Storage, take_over: bool = False, say: Callable[[str], None] = lambda said: None) -> str:
    async def once() -> str:
        async with writing(RUN, storage, take_over, say) as writer:
            return writer.epoch

    return asyncio.run(once())


def test_this_process_runs_and_one_of_another_start_of_its_number_does_not() -> None:
    assert is_running(identity()) is True
    place, _, started = identity().rsplit("/", 2)
    assert is_running(f"{place}/{os.getpid()}/{int(started) + 1}") is False
    assert is_running(f"{place}/4194305/{started}") is False
    assert is_running(ELSEWHERE) is None


@pytest.mark.parametrize("pid", ["x", "", "-1", "1.5", ".", "..", "self", "\u0661", "1\n", "\0", "9" * 5000, None])
def test_what_identifies_no_process_is_none_that_anybody_knows(storage: Storage, pid: str | None) -> None:
    process = "x" if pid is None else f"{identity().rsplit('/', 2)[0]}/{pid}/"
    for each in (process, f"{process}1"):
        assert is_running(each) is None
    held_by(storage, process)
    with pytest.raises(HeldError, match=f"by process {re.escape(pid or process if pid is None else pid)} on another-machine"):
        check_free(storage, RUN.layout)


def test_a_file_that_is_no_epoch_counts_for_none_and_one_that_is_damaged_for_itself_alone(storage: Storage) -> None:
    for name in ("zzz", "e", "eeee", "e-1", "\u0661", "e0001-abc/e0009-abc.x", "e" + "9" * 200):
        storage.write_json(RUN.layout.epoch(name), {})
    assert newest(storage, RUN.layout) == ""
    first = take(storage, RUN.layout).name
    assert first.startswith("e0001-")
    storage.write_json(RUN.layout.epoch("e9999-abcdef"), {})
    with pytest.raises(TakenOverError, match=r"taken over by a process on another machine \(epoch e9999-abcdef\)"):
        check_newest(storage, RUN.layout, first)
    after = take(storage, RUN.layout).name
    assert after.startswith("e10000-")
    check_newest(storage, RUN.layout, after)


def test_epochs_are_numbered_and_the_newest_alone_may_write(storage: Storage) -> None:
    names = [take(storage, RUN.layout).name for _ in range(3)]
    assert [name[:5] for name in names] == ["e0001", "e0002", "e0003"]
    assert newest(storage, RUN.layout) == names[-1]
    check_newest(storage, RUN.layout, names[-1])
    with pytest.raises(TakenOverError, match=r"taken over by a process on .* \(epoch e0003-"):
        check_newest(storage, RUN.layout, names[0])


def test_a_run_that_was_deleted_is_written_no_more(storage: Storage) -> None:
    with pytest.raises(TakenOverError, match="was deleted while this process worked on it"):
        check_newest(storage, RUN.layout, "e0001-abcdef")


def test_a_run_that_was_removed_while_it_was_opened_is_not_begun(storage: Storage) -> None:
    storage.delete(RUN.layout.identity)
    with pytest.raises(InfraError, match="run 'r' was removed by another process while it was opened; try again"):
        enter(storage)
    assert storage.list(RUN.layout.folder) == []


def test_an_empty_run_is_not_dropped_under_a_process_that_begins_it(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    delete = Storage.delete

    def meanwhile(self: Storage, key: str) -> None:
        monkeypatch.setattr(Storage, "delete", delete)
        begun.append(held_by(self, ELSEWHERE).epoch.name)
        delete(self, key)

    begun: list[str] = []
    monkeypatch.setattr(Storage, "delete", meanwhile)
    assert not drop(RUN, storage, [])
    assert find_run(storage, "r") == RUN
    assert not drop(RUN, storage, [])
    assert find_run(storage, "r") == RUN
    assert newest(storage, RUN.layout) == begun[0]


def test_a_run_that_another_machine_trains_is_refused_with_its_name(storage: Storage) -> None:
    held_by(storage, ELSEWHERE, age=4.0)
    words = r"worked on by process 77 on another-machine, with its last sign 4 s ago; wait for it to end, or add --take-over"
    with pytest.raises(InfraError, match=words):
        enter(storage)
    with pytest.raises(InfraError, match="wait for it to end"):
        check_free(storage, RUN.layout)
    assert len(storage.list(RUN.layout.epochs)) == 1  # none was taken


@pytest.mark.parametrize(
    ("process", "age", "ended"),
    [(ELSEWHERE, 61.0, False), (ELSEWHERE, 0.0, True), (f"{identity().rsplit('/', 2)[0]}/4194305/1", 0.0, False)],
    ids=["silent for a minute", "ended", "dead on this machine"],
)
def test_a_run_whose_writer_is_gone_is_free(storage: Storage, process: str, age: float, ended: bool) -> None:
    held_by(storage, process, age, ended)
    assert enter(storage).startswith("e0002-")


def test_a_living_process_of_this_machine_holds_its_lease_however_long_it_was_stopped(storage: Storage) -> None:
    held_by(storage, identity(), age=3600.0)
    with pytest.raises(InfraError, match="--take-over"):
        enter(storage)


@pytest.mark.parametrize("data", [b"", b'{"beat": 1}'])
def test_a_lease_that_cannot_be_read_holds_nothing(storage: Storage, data: bytes) -> None:
    storage.write_bytes(RUN.layout.lease, data)
    assert enter(storage).startswith("e0001-")


def test_the_lease_is_let_go_at_the_end(storage: Storage) -> None:
    enter(storage)
    assert storage.read_json(RUN.layout.lease)["ended"] is True
    check_free(storage, RUN.layout)


async def cleaned(storage: Storage, error: Exception | None = None) -> Lease:
    """Work on the run that is no start of it; returns the lease as it was meanwhile."""
    async with writing(RUN, storage, False, lambda said: None, keep_ending=True):
        meanwhile = Lease.model_validate(storage.read_json(RUN.layout.lease))
        if error is not None:
            raise error
    return meanwhile


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_work_that_is_no_start_of_a_run_leaves_how_and_when_it_ended(storage: Storage, fails: bool) -> None:
    held = held_by(storage, ELSEWHERE, age=3600, ended=True)
    ended = held.model_copy(update={"status": "FAILED", "reason": "the engine died"})
    storage.write_json(RUN.layout.lease, ended.model_dump())
    if fails:
        with pytest.raises(ValueError, match="no"):
            asyncio.run(cleaned(storage, ValueError("no")))
    else:
        meanwhile = asyncio.run(cleaned(storage))
        assert meanwhile.is_held
        assert (meanwhile.status, meanwhile.reason) == ("FAILED", "the engine died")
    assert last_ending(storage, RUN.layout) == (Ending("FAILED", "the engine died"), held.beat)
    check_free(storage, RUN.layout)


def test_work_that_is_no_start_of_a_run_ends_none_that_died_silently(storage: Storage) -> None:
    held = held_by(storage, ELSEWHERE, age=3600)
    asyncio.run(cleaned(storage))
    assert last_ending(storage, RUN.layout) == (Ending("KILLED", SILENT), held.beat)
    storage.delete(RUN.layout.lease)
    asyncio.run(cleaned(storage))
    assert last_ending(storage, RUN.layout) == (Ending("KILLED", SILENT), None)


def test_of_two_on_one_run_the_one_that_was_taken_over_stops_and_the_other_goes_on(storage: Storage) -> None:
    said: list[str] = []
    ends: dict[str, str] = {}

    async def first(began: asyncio.Event) -> None:
        try:
            async with writing(RUN, storage, False, said.append):
                began.set()
                await asyncio.sleep(60)
        except TakenOverError as error:
            ends["first"] = str(error)

    async def both() -> None:
        began = asyncio.Event()
        task = asyncio.create_task(first(began))
        await began.wait()
        async with writing(RUN, storage, True, said.append) as writer:
            ends["second"] = writer.epoch
            await task
            check_newest(storage, RUN.layout, writer.epoch)

    asyncio.run(both())
    assert "taken over" in ends["first"]
    assert ends["second"].startswith("e0002-")
    assert "is asked to stop" in said[0]


def test_a_write_that_was_under_way_has_ended_when_the_run_is_known_to_be_taken_over(storage: Storage) -> None:
    wrote: list[str] = []

    async def body() -> None:
        async with writing(RUN, storage, False, wrote.append):
            await asyncio.to_thread(lambda: (take(storage, RUN.layout), time.sleep(0.5), wrote.append("late")))

    with pytest.raises(TakenOverError):
        asyncio.run(body())
    assert wrote == ["late"]


def test_whatever_fails_once_a_run_is_taken_over_fails_for_that(storage: Storage) -> None:
    async def body(taken: bool) -> None:
        async with writing(RUN, storage, False, lambda said: None):
            if taken:
                take(storage, RUN.layout)
            raise FileNotFoundError("what the other process deleted")

    with pytest.raises(FileNotFoundError):
        asyncio.run(body(taken=False))
    with pytest.raises(TakenOverError, match="taken over by a process on") as raised:
        asyncio.run(body(taken=True))
    assert isinstance(raised.value.__cause__, FileNotFoundError)


def test_a_body_that_fails_because_it_was_stopped_was_stopped(storage: Storage) -> None:
    async def body() -> None:
        async with writing(RUN, storage, False, lambda said: None) as writer:
            storage.write_json(RUN.layout.stop(writer.epoch), {})
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise RuntimeError("a service was cut off") from None

    with pytest.raises(StoppedError):
        asyncio.run(body())
    assert last_ending(storage, RUN.layout)[0].status == "KILLED"


def test_a_dead_holder_on_another_machine_is_waited_for_until_its_lease_runs_out(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.3)
    held = held_by(storage, ELSEWHERE)
    enter(storage, take_over=True)
    assert held.age >= 0.3


def test_a_dead_holder_whose_clock_was_ahead_is_waited_for_no_longer(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "LEASE_S", 0.3)
    held_by(storage, ELSEWHERE, age=-3600)
    enter(storage, take_over=True)


def test_two_that_start_at_once_do_not_both_go_on(storage: Storage) -> None:
    ends: list[str] = []

    async def one() -> None:
        with suppress(TakenOverError):
            async with writing(RUN, storage, False, lambda said: None) as writer:
                await asyncio.sleep(0.5)
                ends.append(writer.epoch)

    async def both() -> None:
        await asyncio.gather(one(), one(), return_exceptions=True)

    asyncio.run(both())
    assert len(ends) == 1


def test_a_body_that_is_cancelled_for_another_reason_is_just_cancelled(storage: Storage) -> None:
    async def cancelled() -> None:
        async with writing(RUN, storage, False, lambda said: None):
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())
