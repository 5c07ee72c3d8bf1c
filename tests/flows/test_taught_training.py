"""A training whose teacher is another run's checkpoint and whose questions are drawn from pools, with every real part."""

import subprocess
from pathlib import Path

import pytest

from nbrl.infra.storage import Storage
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.run import known_run
from tests.flows.conftest import NBRL, command
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.more, pytest.mark.process]
LOSS = "update.loss={kind: distill, teacher: small@1, reward: 0.1}"


def said(home: Path, *line: str) -> subprocess.CompletedProcess[str]:
    done = [str(NBRL), *line, "--home", str(home)]
    return subprocess.run(done, capture_output=True, text=True, timeout=300, env=mark("taught"), check=False)


def test_a_run_learns_from_another_ones_checkpoint_and_its_updates_can_be_done_again(
    home: Path, storage: Storage, prefect: None
) -> None:
    line = command(home, "taught", "iterations=2", LOSS, "select.pools={unseen: 1, learnable: 2}")
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("taught"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (read_record(storage, known_run(storage, "taught"), number) for number in range(2))
    assert first is not None
    assert second is not None
    assert second.metrics["teach/tokens"] == second.metrics["update/sampled_tokens"]
    assert first.metrics["update/teacher_kl"] > 0
    asked = storage.read_table(second.asked[-1].path)
    assert sum(asked["asked"].to_pylist()) == 16
    for arguments in (("audit", "taught"), ("audit", "taught", "--replay", "2")):
        audited = said(home, *arguments)
        assert (audited.returncode, audited.stderr) == (0, ""), audited.stderr
    check_gone("taught")
