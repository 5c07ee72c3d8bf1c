"""The whole loop with every real part, small: Prefect, Ray, bubblewrap kernels, SGLang, FSDP2 workers, MLflow."""

import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.stages import is_chunk
from nbrl.tasks.tracking.names import MAIN
from tests.flows.conftest import NBRL, command
from tests.flows.golden import FILE, digests, machine
from tests.flows.made import audited, record
from tests.processes import check_gone, heed_interrupts, mark

pytestmark = pytest.mark.e2e


def test_a_run_ends_with_its_table_and_what_to_type_next(storage: Storage, trained: subprocess.CompletedProcess[str]) -> None:
    for words in (
        "exact match",
        "before",
        "after",
        "rollout",
        "nbrl show small/",
        "nbrl ui",
        "learning curve",
        "nbrl publish-run small",
        "nbrl audit published/small",
    ):
        assert words in trained.stdout
    assert "Traceback" not in trained.stderr
    assert trained.stderr.count("iteration ") == 2


def test_every_iteration_leaves_its_artifacts_and_its_record_last(storage: Storage) -> None:
    for iteration in range(2):
        done = record(storage, "small", iteration)
        keys = storage.list(f"runs/small/iterations/{iteration:06d}")
        for artifact in (*done.rounds[0], *(each for each in done.artifacts if each.path.endswith("/advantages.parquet"))):
            assert storage.read_bytes(artifact.path, artifact.digest)
        chunks = set(filter(is_chunk, keys))
        assert chunks == set(done.rounds[0].trajectories.parts)
        assert len(keys) - len(chunks) == 7 + 1 + 2  # artifacts, results of nodes, the record and its copy
        assert done.cursor == 8 * (iteration + 1)
        assert storage.exists(f"{done.checkpoint}/hf/model.safetensors")


def test_the_run_is_what_its_records_say(home: Path, storage: Storage) -> None:
    audited(f"{home}/storage", "small", home)


def test_engine_and_trainer_agree_on_every_sampled_token(storage: Storage) -> None:
    for iteration in range(2):
        metrics = json.loads(storage.read_bytes(f"runs/small/iterations/{iteration:06d}/record.json"))["metrics"]
        assert metrics["mismatch/logprob_max_abs"] <= 1e-3
        assert metrics["publish/mismatch_p99_abs"] <= 1e-3
        assert metrics["publish/tensors_proved"] == 34


def test_trajectories_name_the_weights_that_sampled_them(storage: Storage) -> None:
    for iteration in range(2):
        table = storage.read_table(record(storage, "small", iteration).rounds[0].trajectories.path)
        trajectories = from_table(table)
        assert len(trajectories) == 32
        assert {node.weights_version for t in trajectories for node in t.sampled()} == {str(iteration)}
        assert all(len(node.logprobs) == len(node.token_ids) > 0 for t in trajectories for node in t.sampled())


def test_the_weights_changed_and_no_prompt_was_asked_twice(storage: Storage) -> None:
    weights = [storage.read_bytes(f"{record(storage, 'small', n).checkpoint}/hf/model.safetensors") for n in (0, 1)]
    assert weights[0] != weights[1]
    asked = [storage.read_table(record(storage, "small", n).rounds[0].prompts.path)["id"].to_pylist() for n in range(2)]
    assert len({*asked[0], *asked[1]}) == 16


def test_tokens_rewards_advantages_and_weights_are_those_on_record(storage: Storage) -> None:
    """Bit for bit. Where no digests are on record for this family of processors, `make test-more` compares two runs."""
    known = json.loads(FILE.read_text())
    if machine() not in known:
        pytest.skip(f"no digests are on record for {machine()}")
    assert digests(storage, "small", 2) == known[machine()][:2]


@pytest.mark.long
def test_weights_that_the_learner_sends_make_the_same_run(home: Path, storage: Storage) -> None:
    line = command(home, "sent", "iterations=2", "publish.via=broadcast")
    sent = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("sent"), check=False)
    assert sent.returncode == 0, sent.stderr[-3000:]
    assert "load them from the storage" not in sent.stderr
    assert digests(storage, "sent", 2) == digests(storage, "small", 2)
    assert record(storage, "sent", 0).metrics["publish/tensors_proved"] == 34
    check_gone("sent")


def test_every_node_is_a_prefect_task_and_mlflow_has_the_metrics(home: Path, storage: Storage) -> None:
    with sqlite3.connect(f"file:{home}/prefect/prefect.db?mode=ro", uri=True) as database:
        names = {row[0].split()[0] for row in database.execute("select name from task_run where state_type = 'COMPLETED'")}
        flows = {row[0] for row in database.execute("select name from flow_run where state_type = 'COMPLETED'")}
        tasks, of_flows = (database.execute(f"select name, tags from {table}").fetchall() for table in ("task_run", "flow_run"))
    nodes = {"sample", "rollout", "reward", "select", "advantage", "update", "publish", "record", "evaluate"}
    assert nodes <= names
    assert {"train small", "small iteration 1", "small iteration 2"} <= flows
    assert {tags for name, tags in tasks if name.split()[0] in nodes} == {"[]"}
    assert all({"small", "tiny-cpu"} <= set(json.loads(tags)) for name, tags in of_flows if "small" in name.split())
    with sqlite3.connect(f"file:{home}/mlflow/mlflow.db?mode=ro", uri=True) as database:
        keys = {row[0] for row in database.execute("select distinct key from metrics")}
        assert {"more/reward/em", "more/eval/em", "more/mismatch/logprob_max_abs", "more/time/rollout"} <= keys
        assert len(MAIN) == 9
        assert set(MAIN.values()) == {key for key in keys if key.startswith("main/")}
        assert database.execute("select count(*) from logged_models where name like '%-small'").fetchone() == (2,)
        assert database.execute("select count(*) from trace_info").fetchone()[0] >= 2


@pytest.mark.parametrize("resumed", [pytest.param(False, marks=pytest.mark.more), True], ids=["train", "resume"])
def test_a_finished_run_is_not_done_again(home: Path, storage: Storage, resumed: bool) -> None:
    before = storage.read_bytes("runs/small/summary.json")
    line = [str(NBRL), "resume", "small", "--root", f"{home}/storage"] if resumed else command(home, "small", "iterations=2")
    again = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("again"), check=False)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "iteration" not in again.stderr
    assert "exact match" in again.stdout
    assert json.loads(storage.read_bytes("runs/small/summary.json")) == json.loads(before)
    check_gone("again")


def test_a_trajectory_can_be_read(home: Path, storage: Storage) -> None:
    example = json.loads(storage.read_bytes("runs/small/summary.json"))["example"]
    shown = subprocess.run([str(NBRL), "show", example, "--root", f"{home}/storage"], capture_output=True, text=True, check=True)
    assert "step 1" in shown.stdout
    assert "reward" in shown.stdout
    listed = subprocess.run([str(NBRL), "show", "small", "--root", f"{home}/storage"], capture_output=True, text=True, check=True)
    assert "world-" in listed.stdout


@pytest.mark.more
def test_an_interrupted_run_leaves_no_process_and_goes_on_to_the_same_bits(home: Path, storage: Storage) -> None:
    stop(home, "interrupted", signal.SIGINT, "iteration ", "iterations=2")
    resume = [str(NBRL), "resume", "interrupted", "--root", f"{home}/storage"]
    done = subprocess.run(resume, capture_output=True, text=True, timeout=600, env=mark("resumed"), check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check_gone("resumed")
    assert digests(storage, "interrupted", 2) == digests(storage, "small", 2)


@pytest.mark.long
def test_a_terminated_run_leaves_no_process(home: Path) -> None:
    stop(home, "terminated", signal.SIGTERM, "evaluation", "iterations=50")


def stop(home: Path, name: str, number: signal.Signals, line_begins: str, *overrides: str) -> None:
    """Send a training a signal a second after such a line; it must end as an interrupted one, without a process left."""
    process = subprocess.Popen(
        command(home, name, *overrides), stderr=subprocess.PIPE, text=True, env=mark(name), preexec_fn=heed_interrupts
    )
    assert process.stderr
    for line in process.stderr:
        if line.startswith(line_begins):
            break
    time.sleep(1.0)
    process.send_signal(number)
    said = process.stderr.read()
    assert process.wait(timeout=60) == 130, said
    assert f"nbrl: stopped; the same command with --run {name} continues the run" in said
    assert "Traceback" not in said
    check_gone(name)


@pytest.mark.long
def test_a_killed_run_leaves_no_process(home: Path, storage: Storage) -> None:
    process = subprocess.Popen(command(home, "killed", "iterations=50"), stderr=subprocess.PIPE, text=True, env=mark("killed"))
    assert process.stderr
    for line in process.stderr:
        if line.startswith("evaluation"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=10)
    check_gone("killed", 20)


@pytest.mark.more
def test_an_engine_that_does_not_come_up_is_one_error_and_leaves_a_run_with_its_log_and_none_in_mlflow(home: Path) -> None:
    done = subprocess.run(
        command(home, "broken", "engine.extra_args={no-such-flag: x}"),
        capture_output=True,
        text=True,
        timeout=300,
        env=mark("broken"),
        check=False,
    )
    assert done.returncode == 1
    assert "engine" in done.stderr
    assert "no-such-flag" in done.stderr
    assert "Traceback" not in done.stderr
    lines = subprocess.run(
        [str(NBRL), "logs", "broken", "--root", f"{home}/storage"], capture_output=True, text=True, check=True
    ).stdout
    assert "no-such-flag" in lines.splitlines()[-1]
    with sqlite3.connect(f"file:{home}/mlflow/mlflow.db?mode=ro", uri=True) as database:
        assert database.execute("select count(*) from runs where name = 'broken'").fetchone() == (0,)
    check_gone("broken")


@pytest.mark.long
def test_a_run_that_publishes_adapters_goes_on_with_other_ranks(home: Path) -> None:
    lora = ["update.lora.rank=4", "update.lora.publish=adapter", "update.lr=3e-3", "rollout.prompts=4", "evaluate.questions=4"]
    for updates in (1, 2):
        line = command(home, "adapters", *lora, f"iterations={updates}", f"update.workers={updates}")
        done = subprocess.run(line, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    records = [Path(home, "storage/runs/adapters/iterations", f"{number:06d}", "record.json") for number in range(2)]
    first, second = (json.loads(record.read_text())["metrics"] for record in records)
    assert second["update/kl"] > first["update/kl"] == 0  # the second round was sampled by an adapter
    for metrics in (first, second):
        assert max(metrics["publish/mismatch_p99_abs"], metrics["mismatch/logprob_max_abs"]) < 1e-3
