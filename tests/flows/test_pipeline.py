"""Rollouts beside the update, with every real part."""

import subprocess
from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from tests.flows.conftest import command
from tests.flows.made import audited, record
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more, pytest.mark.usefixtures("prefect")]


ONE = ["pipeline.lag=1", "update.tis.kind=mask_tokens", "publish.via=broadcast"]
TWO = [
    *("pipeline.lag=2", "iterations=4", "select.max_rounds=1", "update.lora.publish=adapter"),
    *("update.loss.kind=ppo", "update.loss.old=interpolated", "update.tis.kind=truncate", "advantage.per_ability=true"),
]


@pytest.mark.parametrize(
    ("overrides", "samplers", "staleness"),
    [(ONE, ["0", "0", "1"], [0, 1, 1]), (TWO, ["0", "0", "0", "1"], [0, 1, 2, 2])],
    ids=["one batch ahead", "two batches ahead"],
)
def test_batches_are_sampled_beside_updates_from_weights_so_many_updates_older(
    home: Path, overrides: list[str], samplers: list[str], staleness: list[int]
) -> None:
    run, storage = f"ahead-{len(samplers)}", Storage(StorageSettings(root=f"{home}/storage"))
    line = command(home, run, *overrides)
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark(run), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check_gone(run)
    assert "load them from the storage" not in done.stderr
    records = [record(storage, run, number) for number in range(len(samplers))]
    sampled = [from_table(storage.read_table(each.rounds[0].trajectories.path)) for each in records]
    versions = [{node.weights_version for t in batch for node in t.sampled()} for batch in sampled]
    assert versions == [{version} for version in samplers]
    assert [each.metrics["pipeline/staleness"] for each in records] == staleness
    assert [each.metrics[f"pipeline/staleness/{age}"] for each, age in zip(records, staleness, strict=True)] == [1.0] * len(
        records
    )
    overlap = [each.metrics["pipeline/overlap"] for each in records]
    assert overlap[-1 - staleness[-1]] > 0 == overlap[-1]  # the last batch begins with the update of that iteration
    assert len({t.group for batch in sampled for t in batch}) == 8 * len(samplers)
    audited(f"{home}/storage", run, home)
