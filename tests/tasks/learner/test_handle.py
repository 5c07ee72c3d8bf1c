"""The long Ray Train run: real Ray, two workers."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from ray.train import ControllerError

from nbrl.tasks.errors import LearnerEndedError, LearnerUnplacedError, UpdateError
from nbrl.tasks.learner.driver.handle import LearnerHandle, _is_unplaced, _reason
from nbrl.tasks.learner.settings import UpdateSettings
from tests.processes import descendants, told
from tests.tasks.learner import update_lab

pytestmark = pytest.mark.usefixtures("cluster")


def workers() -> list[int]:
    """Those of Ray Train below this process."""
    return [pid for pid in descendants(os.getpid()) if told(pid).startswith(b"ray::RayTrainWorker")]


@pytest.mark.more
def test_orders_errors_and_a_killed_worker(policy: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        handle = LearnerHandle.start(
            UpdateSettings(workers=2, lr=1e-3, deterministic=True), update_lab.places(policy), str(tmp_path / "notes")
        )
        try:
            await handle.ready()
            unused = (b"ray::DatasetManager", b"ray::PlacementGroupCleaner")
            assert not [pid for pid in descendants(os.getpid()) if told(pid).startswith(unused)]
            trajectories = update_lab.make_trajectories(0)
            first = update_lab.write_order(tmp_path / "0", trajectories, str(tmp_path / "out0"))
            second = {"iteration": 1, "checkpoint_in": first.checkpoint_out, "checkpoint_out": update_lab.key(tmp_path / "out1")}
            result = await handle.update(first)
            assert result.metrics["update/skipped"] == 0
            with pytest.raises(UpdateError, match="not a finished checkpoint"):
                await handle.update(first.model_copy(update=second | {"checkpoint_in": update_lab.key(tmp_path / "nowhere")}))
            assert (await handle.update(first.model_copy(update=second))).metrics["update/kl"] > 0
            assert await handle.update(first) == result

            long = update_lab.write_order(tmp_path / "2", update_lab.make_trajectories(0, 2000), str(tmp_path / "out2"))
            waiting = asyncio.create_task(handle.update(long))
            await asyncio.sleep(1)
            os.kill(workers()[0], signal.SIGKILL)
            killed = time.monotonic()
            with pytest.raises(LearnerEndedError, match="the learner has ended: rank"):
                await waiting
            assert time.monotonic() - killed < 20
            with pytest.raises(LearnerEndedError, match="the learner has ended"):
                await handle.update(first)
        finally:
            handle.stop()

    asyncio.run(scenario())
    assert not (tmp_path / "out2").exists()


@pytest.mark.long
def test_stop_ends_the_workers(policy: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        handle = LearnerHandle.start(UpdateSettings(workers=1), update_lab.places(policy), str(tmp_path / "notes"))
        await handle.ready()
        assert workers()
        handle.stop()
        handle.stop()
        with pytest.raises(UpdateError, match="stopped"):
            await handle.ready()

    asyncio.run(scenario())
    deadline = time.monotonic() + 10
    while workers() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers()


@pytest.mark.long
def test_ranks_of_a_learner_that_is_started_again_do_not_wait_for_ever_for_machines(policy: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = UpdateSettings(workers=1, resources={"nowhere": 1})
        handle = LearnerHandle.start(settings, update_lab.places(policy), str(tmp_path / "notes"), grows=True, again=True)
        try:
            with pytest.raises(LearnerUnplacedError, match=r"no machines of the cluster have room for its ranks, see update\."):
                await asyncio.wait_for(handle.ready(), 300)
        finally:
            handle.stop()

    asyncio.run(scenario())


@pytest.mark.more
def test_only_the_wait_for_machines_is_told_as_no_room_for_ranks() -> None:
    class WorkerGroupStartupTimeoutError(Exception):
        """As Ray Train names its own."""

    assert _is_unplaced(ControllerError(WorkerGroupStartupTimeoutError("60 s")))
    assert not _is_unplaced(ControllerError(RuntimeError("NCCL could not be set up")))
    assert "NCCL could not be set up" in _reason(ControllerError(RuntimeError("NCCL could not be set up")))


def test_a_folder_that_is_no_model_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match=r"config\.json"):
        LearnerHandle.start(UpdateSettings(), update_lab.places(tmp_path), str(tmp_path / "notes"))


def test_offload_without_gpus_is_refused_at_once(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match=r"update\.offload optimizer .* runs on the CPU"):
        LearnerHandle.start(UpdateSettings(offload=("optimizer",)), update_lab.places(policy), str(tmp_path / "notes"))
    assert not (tmp_path / "notes").exists()
