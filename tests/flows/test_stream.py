"""Rollouts that never stop, with every real part: weights are swapped in beside trajectories in progress."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.sessions import row_of
from nbrl.tasks.nodes.streamed import stream_rows
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.runs.scope import Scope
from tests.flows.conftest import command
from tests.flows.made import audited, record
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more, pytest.mark.usefixtures("prefect")]
STREAM = [
    *("pipeline.stream=true", "pipeline.lag=2", "update.tis.kind=mask_tokens", "select.max_rounds=1", "iterations=4"),
    *("pipeline.admit=finish", "checkpoints.keep_last=3", "evaluate.every=2"),
]


def test_a_stream_goes_on_through_updates_and_a_kill_and_learns_from_every_group_once(home: Path) -> None:
    storage, line = Storage(StorageSettings(root=f"{home}/storage")), command(home, "stream", *STREAM)
    first = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=mark("stream"))
    until = time.monotonic() + 300
    while not storage.exists("runs/stream/iterations/000001/record.json"):
        assert first.poll() is None
        assert time.monotonic() < until
        time.sleep(0.2)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("stream"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check_gone("stream")
    records = [record(storage, "stream", number) for number in range(4)]
    assert [each.updates for each in records] == [1, 2, 3, 4]
    batches = [from_table(storage.read_table(each.rounds[0].trajectories.path)) for each in records]
    groups = [{each.group for each in batch} for batch in batches]
    assert len(set.union(*groups)) == sum(map(len, groups)) >= 4 * 8
    ages = [each.metrics["pipeline/staleness"] for each in records]
    assert ages[0] == 0 < max(ages) <= 2
    assert all(each.metrics["mismatch/logprob_max_abs"] <= 1e-3 for each in records[:1])
    versions = {node.weights_version for batch in batches for each in batch for node in each.sampled()}
    assert {"0"} < versions <= {"0", "1", "2", "3"}
    audited(f"{home}/storage", "stream", home)
    run, (round_,) = known_run(storage, "stream"), records[2].rounds
    rows = stream_rows(stored_config(storage, run), scope_of(run), storage.read_table(round_.prompts.path))
    again = row_of(storage, run, round_.trajectories.path, batches[2][0])
    assert again["seed"] == next(row["seed"] for row in rows if row["id"] == batches[2][0].id)


def scope_of(run: Run) -> Scope:
    return Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("run", "settings"),
    [("drained", ["pipeline.mixed=0"]), ("adapters", ["update.lora.publish=adapter", "pipeline.admit=quota"])],
)
def test_every_trajectory_of_a_stream_keeps_its_weights_where_that_is_asked(home: Path, run: str, settings: list[str]) -> None:
    storage, line = Storage(StorageSettings(root=f"{home}/storage")), command(home, run, *STREAM, *settings)
    done = subprocess.run(line, capture_output=True, text=True, timeout=900, env=mark(run), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check_gone(run)
    records = [record(storage, run, number) for number in range(4)]
    assert [each.updates for each in records] == [1, 2, 3, 4]
    assert [each.metrics["pipeline/mixed"] for each in records] == [0, 0, 0, 0]
    assert max(each.metrics["pipeline/staleness"] for each in records) > 0
    audited(f"{home}/storage", run, home)
