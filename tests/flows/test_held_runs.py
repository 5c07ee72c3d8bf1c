"""A run, or an evaluation, on which another process works: refused before anything is started for it."""

import time
from pathlib import Path

import pytest

from nbrl.flows.evaluation_plan import planned
from nbrl.flows.evaluation_request import EvaluationRequest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import EvaluationLayout, RunLayout
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.lease import Lease
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.preflight import prepared
from tests.flows.typed import nbrl

pytestmark = pytest.mark.process


def settings(folder: Path) -> list[str]:
    return [
        f"storage.root={folder}/storage",
        f"home={folder}/home",
        "environments.world.train=64",
        "environments.world.held_out=12",
    ]


def hold(storage: Storage, layout: RunLayout) -> None:
    """Let this process work on it."""
    storage.write_json(layout.lease, Lease(epoch=take(storage, layout), beat=time.time()).model_dump())


def refused(folder: Path, *command: str) -> str:
    done = nbrl(*command, *(part for each in settings(folder) for part in ("--set", each)))
    assert done.returncode == 1, done.stderr
    assert not (folder / "home").exists(), "something was started"
    return done.stderr


def test_a_training_that_another_process_does_starts_nothing(tmp_path: Path) -> None:
    start = prepared("tiny-cpu", settings(tmp_path), "train")
    storage = Storage(start.config.storage)
    open_run(start.config, "r", storage, start.take())
    hold(storage, RunLayout("r"))
    assert "run 'r' is being worked on by process " in refused(tmp_path, "train", "tiny-cpu", "--run", "r")


def test_an_evaluation_that_another_process_does_starts_nothing(tmp_path: Path) -> None:
    plan = planned(EvaluationRequest(recipe="tiny-cpu", overrides=tuple(settings(tmp_path)), name="e"))
    hold(Storage(plan.config.storage), EvaluationLayout("e"))
    assert "evaluation 'e' is being worked on by process " in refused(tmp_path, "evaluate", "tiny-cpu", "--name", "e")
