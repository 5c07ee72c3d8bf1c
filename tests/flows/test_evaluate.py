"""Batch evaluations of real models in real sandboxes: of a run, killed and continued, and of a model behind a server."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.home import Home
from nbrl.infra.parts import parts_of
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking, TrackingSettings
from nbrl.tasks.layout.runs import EvaluationLayout, RunLayout
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.rollout.plan import Server
from tests.flows.conftest import NBRL
from tests.flows.made import chunks_of
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more, pytest.mark.usefixtures("prefect")]


def evaluate(storage: Storage, *options: str, name: str = "evaluate") -> subprocess.CompletedProcess[str]:
    line = [str(NBRL), "evaluate", "--root", storage.settings.root, *options]
    done = subprocess.run(line, capture_output=True, text=True, timeout=400, env=mark(name), check=False)
    check_gone(name)
    return done


def told(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout))


def in_mlflow(home: Path, name: str) -> tuple[str, float]:
    """Name of the run below which MLflow has an evaluation, and the success that it has of it."""
    client = Tracking(TrackingSettings(), Home(home)).client
    (experiment,) = [each.experiment_id for each in client.search_experiments() if each.name == "nbrl"]
    (found,) = client.search_runs([experiment], f'attributes.run_name = "{name}"')
    parent = client.get_run(found.data.tags["mlflow.parentRunId"])
    return str(parent.info.run_name), found.data.metrics["main/held_out_success"]


def test_a_run_is_evaluated_on_its_own_questions_with_the_scores_that_it_ended_with(home: Path, storage: Storage) -> None:
    summary = told(evaluate(storage, "--model", "small", "--json"))
    assert summary["subject"]["run"] == "small"
    assert summary["metrics"]["questions"] == 12
    assert summary["metrics"]["success"] == storage.read_json(RunLayout("small").summary)["after"]["success"]
    answers = storage.read_table(EvaluationLayout(summary["name"]).answers)
    assert answers["success"].to_pylist().count(1.0) == round(12 * summary["metrics"]["success"])
    assert storage.read_bytes(EvaluationLayout(summary["name"]).report).decode().startswith("# Evaluation of small@")
    assert in_mlflow(home, summary["name"]) == ("small", summary["metrics"]["success"])
    again = evaluate(storage, "--model", "small", "--json")
    assert told(again) == summary
    assert again.stderr == ""  # nothing was asked again, and nothing was started


def test_an_evaluation_that_was_killed_goes_on_where_it_was(storage: Storage) -> None:
    options = ["--model", "small@1", "--samples", "8", "--name", "killed", "--json"]
    line = [str(NBRL), "evaluate", "--root", storage.settings.root, *options]
    layout = EvaluationLayout("killed")
    with subprocess.Popen(
        line, env=mark("killed"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as first:
        end = time.monotonic() + 300
        while not chunks_of(storage, layout) and time.monotonic() < end:
            time.sleep(0.05)
        os.killpg(first.pid, signal.SIGKILL)
    chunks = chunks_of(storage, layout)
    assert chunks
    assert not storage.exists(layout.summary)
    finished = {each.id: each for chunk in chunks for each in from_table(storage.read_table(chunk))}
    summary = told(evaluate(storage, *options, name="went-on"))
    assert (summary["trajectories"], summary["samples"], summary["failed"]) == (96, 8, 0)
    assert sorted(summary["scores"][0]["pass_at"]) == ["2", "4", "8"]
    (table,) = [key for key in storage.list(layout.evaluations) if is_trajectories(key)]
    there = {each.id: each for each in from_table(storage.read_table(table))}
    assert len(there) == 96
    assert all(there[name] == each for name, each in finished.items())
    assert set(chunks_of(storage, layout)) == set(parts_of(storage.read_index(table)))
    check_gone("killed")


def test_a_model_behind_a_server_answers_directly(home: Path, storage: Storage) -> None:
    serve = [str(NBRL), "serve", "small@1", "--root", storage.settings.root, "--home", str(home), "--port", "31877"]
    environment = mark("serve") | {"NBRL_TEST_KEY": "a-key-that-nobody-prints"}
    with subprocess.Popen(
        [*serve, "--api-key-env", "NBRL_TEST_KEY"], env=environment, stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            assert "http://127.0.0.1:31877/v1" in server.stdout.readline()
            os.environ["NBRL_TEST_KEY"] = environment["NBRL_TEST_KEY"]
            asked = ["tiny-cpu", "--endpoint", "http://127.0.0.1:31877/v1", "--mode", "direct", "--questions", "4", "--json"]
            settings = [
                f"storage.root={storage.settings.root}",
                f"home={home}",
                "environments.world.held_out=12",
                "environments.world.train=64",
            ]
            options = [*asked, *(part for each in settings for part in ("--set", each))]
            refused = evaluate(storage, *options)
            assert refused.returncode == 1
            assert "401" in refused.stderr
            change = "http://127.0.0.1:31877/update_weights_from_disk"
            for headers in ({}, {"Authorization": f"Bearer {environment['NBRL_TEST_KEY']}"}):
                # Whoever may ask the model may not change it.
                assert httpx.post(change, json={"model_path": "/"}, headers=headers, trust_env=False).status_code == 401
            # Nor is it told the key with which that can be done.
            info = httpx.get("http://127.0.0.1:31877/server_info", headers=headers, trust_env=False)
            keys = [each["admin_api_key"] for each in (info.json(), *info.json()["internal_states"])]
            assert keys == ["[key]"] * 2
            assert environment["NBRL_TEST_KEY"] not in info.text
            summary = told(evaluate(storage, *options, "--api-key-env", "NBRL_TEST_KEY"))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)
    check_gone("serve")
    assert summary["mode"] == "direct"
    subject = summary["subject"]["server"]
    assert Server.model_validate(subject).chat.model == "small@1"
    layout = EvaluationLayout(summary["name"])
    answers = storage.read_table(layout.answers).to_pylist()
    assert [(row["steps"], row["failure"]) for row in answers] == [(1, "")] * 4
    written = "".join(storage.read_bytes(key).decode("utf-8", "replace") for key in storage.list(layout.folder))
    assert environment["NBRL_TEST_KEY"] not in written


def test_the_agent_asks_the_policy_of_a_run_with_its_own_settings_and_passages(tmp_path: Path, storage: Storage) -> None:
    line = [str(NBRL), "agent", "--run", "small@1", "--root", storage.settings.root, "--no-save", "--json"]
    question = storage.read_table("runs/small/data/held_out.parquet")["question"][1].as_py()
    done = subprocess.run(
        [*line, "--set", "agent.max_steps=2", "--set", "evaluate.sampling.temperature=0", question],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env=mark("ask"),
        check=False,
    )
    assert done.returncode in (0, 3), done.stderr[-3000:]  # answered or not
    trajectory = json.loads(done.stdout)
    sampled = [node for node in trajectory["nodes"] if node["kind"] == "sampled"]
    assert {node["weights_version"] for node in sampled} == {"1"}
    assert 1 <= len(trajectory["steps"]) <= 2
    check_gone("ask")
