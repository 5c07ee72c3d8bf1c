"""How a start of a run ended is on its storage."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RunError, TakenOverError
from nbrl.tasks.runs.ending import SILENT, STOPPED, Ending, ending_of
from nbrl.tasks.runs.epochs import Epoch, without_passwords
from nbrl.tasks.runs.lease import Lease, last_ending
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.writer import writing

RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    made = Storage(StorageSettings(root=str(tmp_path)))
    made.create_json(RUN.layout.identity, RUN.model_dump(mode="json"))
    return made


async def train(storage: Storage, error: BaseException | None) -> None:
    async with writing(RUN, storage, False, print, {}, "c0ffee"):
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (None, Ending("FINISHED")),
        (RunError("the disk is full\nmore"), Ending("FAILED", "the disk is full")),
        (ValueError(), Ending("FAILED", "ValueError")),
        (asyncio.CancelledError(), Ending("KILLED", STOPPED)),
        (KeyboardInterrupt(), Ending("KILLED", STOPPED)),
        (TakenOverError("taken over"), Ending("KILLED", "taken over")),
    ],
)
def test_the_lease_keeps_why_a_start_ended(storage: Storage, error: BaseException | None, ending: Ending) -> None:
    assert ending_of(error) == ending
    if isinstance(error, KeyboardInterrupt):  # asyncio lets this one out of the loop itself
        return
    with nullcontext() if error is None else pytest.raises(type(error)):
        asyncio.run(train(storage, error))
    assert last_ending(storage, RUN.layout)[0] == ending


def test_a_process_that_was_killed_said_nothing(storage: Storage) -> None:
    assert last_ending(storage, RUN.layout) == (Ending("KILLED", SILENT), None)
    epoch = Epoch(name="e0001-abcdef", host="h", process="p", started=1.0, version="0")
    storage.write_json(RUN.layout.lease, Lease(epoch=epoch, beat=7.0).model_dump())
    assert last_ending(storage, RUN.layout) == (Ending("KILLED", SILENT), 7.0)


def test_passwords_of_addresses_are_not_kept() -> None:
    assert (
        without_passwords("--set tracking.uri=postgresql://me:secret@host/db") == "--set tracking.uri=postgresql://me:***@host/db"
    )
    assert without_passwords("s3://bucket/a:b@c http://127.0.0.1:80/x") == "s3://bucket/a:b@c http://127.0.0.1:80/x"
