"""Finished work that is done again leaves a run that is what its records say."""

from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_lab import RUN, STREAM

pytestmark = pytest.mark.process
KEPT = ["checkpoints.keep_last=9", "evaluate.every=0", "rollout.failed_share=0.9"]
FINISH = [*STREAM, "pipeline.admit=finish", "iterations=5"]
ROLLOUTS = [(number, "rollout") for number in range(5, 1, -1)]


@pytest.mark.parametrize(
    ("settings", "redone"),
    [
        (["iterations=2"], [(1, "update")]),
        pytest.param(FINISH, [(2, "update"), (3, "reward"), *ROLLOUTS], marks=pytest.mark.more),
    ],
    ids=["batches", "stream"],
)
def test_whatever_is_done_again_the_audit_is_clean(
    labs: Labs, tmp_path: Path, settings: list[str], redone: list[tuple[int, str]]
) -> None:
    root, storage = str(tmp_path / "root"), Storage(StorageSettings(root=str(tmp_path / "root")))
    for again in [[], *([each] for each in redone)]:
        end = labs[0].train(root, tmp_path / "home", overrides=[*settings, *KEPT], redo=again)
        assert end["status"] == 0, end["said"]
        run = known_run(storage, RUN)
        audit = Audit(storage, stored_config(storage, run), run, lambda said: None)
        assert list(audit.contradictions()) == [], again
