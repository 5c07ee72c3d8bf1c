"""Rollouts beside the update, with every real part."""

import subprocess
from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage
from tests.flows.conftest import command
from tests.flows.made import audited, record
from tests.processes import left_over, mark

pytestmark = pytest.mark.e2e


def test_a_lag_of_one_samples_beside_the_update_from_the_weights_before(home: Path, storage: Storage) -> None:
    line = command(home, "ahead", "pipeline.lag=1", "update.tis.kind=mask_tokens")
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("ahead"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert left_over("ahead") == []
    records = [record(storage, "ahead", number) for number in range(3)]
    sampled = [from_table(storage.read_table(each.rounds[0].trajectories.path)) for each in records]
    assert [{node.weights_version for t in batch for node in t.sampled()} for batch in sampled] == [{"0"}, {"0"}, {"1"}]
    assert [each.metrics["pipeline/staleness"] for each in records] == [0, 1, 1]
    assert [each.metrics["pipeline/overlap"] > 0 for each in records] == [True, True, False]
    assert len({t.group for batch in sampled for t in batch}) == 24
    audited(f"{home}/storage", "ahead", home)
