"""`nbrl agent` with a model server that refuses or is busy, with tools whose key is missing, and what its JSON holds."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nbrl.agent.trajectory import Status, Trajectory
from tests.agent.tool_server import Said, serving
from tests.flows.model_server import TINY, act, model_server
from tests.flows.test_agent_cli import run

pytestmark = pytest.mark.process

MODELS = Said({"data": [{"id": "m"}]})
TASK = "what stands in the box?"


def said(*answers: Said, models: Said = MODELS) -> Callable[[str], Said]:
    """A chat API that gives these answers in turn, the last one again and again."""
    left = list(answers)

    def route(path: str) -> Said:
        if path.endswith("/models"):
            return models
        return (left.pop(0) if len(left) > 1 else left[0]) if path.endswith("/chat/completions") else Said(status=404)

    return route


def completion(text: str) -> Said:
    message = {"role": "assistant", "content": text}
    return Said({"model": "m", "choices": [{"index": 0, "finish_reason": "stop", "message": message}]})


@pytest.mark.parametrize("status", [401, pytest.param(403, marks=pytest.mark.more)])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        (None, "name that one by --api-key-env NAME"),
        pytest.param("sk-1", "that --api-key-env names", marks=pytest.mark.more),
    ],
)
def test_a_refused_key_names_the_option_for_it(tmp_path: Path, status: int, key: str | None, words: str) -> None:
    options = [] if key is None else ["--api-key-env", "MY_KEY"]
    with serving(route=said(Said(status=status))) as server:
        done = run(tmp_path, TASK, "--endpoint", f"{server.url}/v1", *options, "--no-save", MY_KEY=key or "")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"answered {status}" in done.stderr
    assert words in done.stderr
    assert "key_variable" not in done.stderr


@pytest.mark.more
@pytest.mark.parametrize("path", ["", "/v1"])
def test_a_server_that_hides_its_models_asks_for_the_key_or_a_model(tmp_path: Path, path: str) -> None:
    with serving(route=said(completion(act("submit_final_answer(1)")), models=Said(status=401))) as server:
        refused = run(tmp_path, TASK, "--endpoint", server.url + path, "--no-save")
        ids = run(tmp_path, TASK, "--endpoint", server.url + path, "--model", "m", "--tokenizer", str(TINY), "--no-save")
        named = run(tmp_path, TASK, "--endpoint", server.url + path, "--model", "m", "--no-save")
    for done in (refused, ids):
        assert done.returncode == 1
        assert "answered 401" in done.stderr
        assert "--api-key-env NAME" in done.stderr
    assert (named.returncode, named.stdout) == (0, "1\n"), named.stderr


@pytest.mark.more
def test_each_further_try_of_a_busy_server_is_told(tmp_path: Path) -> None:
    busy = Said(status=429, headers={"Retry-After": "0.01"})
    with serving(route=said(busy, Said(status=503), completion(act("submit_final_answer(1)")))) as server:
        done = run(tmp_path, TASK, "--endpoint", f"{server.url}/v1", "--no-save")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "nbrl: the model server answered 429; trying again in 0.0 s (2 of 6)\n" in done.stderr
    assert re.search(r"nbrl: the model server answered 503; trying again in (0\.[5-9]|1\.0) s \(3 of 6\)\n", done.stderr), (
        done.stderr
    )


def test_quiet_is_quiet_about_further_tries_too(tmp_path: Path) -> None:
    busy = Said(status=429, headers={"Retry-After": "0.01"})
    with serving(route=said(busy, completion(act("submit_final_answer(1)")))) as server:
        done = run(tmp_path, TASK, "--endpoint", f"{server.url}/v1", "--no-save", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_search_without_its_key_is_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    tools = "{default: [search], abilities: {none: []}, search: {engine: serper}}"
    (tmp_path / "tools.yaml").write_text(f"rollout: {{tools: {tools}}}\n")
    options = ["--recipe", "tools.yaml", "--no-save"]
    with model_server(act("submit_final_answer(1)")) as server:
        done = run(tmp_path, TASK, "--endpoint", server.url, *options, SERPER_API_KEY=" ")
        assert server.asked == []
        idle = run(tmp_path, TASK, "--endpoint", server.url, *options, "--ability", "none", SERPER_API_KEY="")
    assert (done.returncode, done.stdout) == (1, "")
    assert "SERPER_API_KEY" in done.stderr
    assert done.stderr.count("nbrl: ") == 1
    assert (idle.returncode, idle.stdout) == (0, "1\n"), idle.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--endpoint", "foo"],
        ["--endpoint", "http://127.0.0.1:9"],
        ["--set", "rollout.tools.mcp.mine.command=[/no/such/program]"],
        ["--set", "rollout.tools.mcp.mine.command=['true']"],
    ],
)
def test_what_cannot_begin_is_an_error_and_shows_no_task(tmp_path: Path, options: list[str]) -> None:
    with model_server(act("submit_final_answer(1)")) as server:
        done = run(tmp_path, TASK, "--endpoint", server.url, *options, "--no-save")
    assert done.returncode == 1
    assert TASK not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.more
def test_json_holds_token_ids_where_they_are_known(tmp_path: Path) -> None:
    known: dict[bool, list[dict[str, object]]] = {}
    for sglang in (True, False):
        with model_server(act("print(1)"), act("submit_final_answer(1)"), sglang=sglang) as server:
            done = run(tmp_path, TASK, "--endpoint", server.url, "--json", "--no-save", "--quiet")
        found = Trajectory.model_validate_json(done.stdout)
        assert (found.status, len(found.sampled())) == (Status.ANSWERED, 2)
        known[sglang] = json.loads(done.stdout)["nodes"]
    assert all(node["token_ids"] for node in known[True])
    assert all(node["logprobs"] for node in known[True] if node["kind"] == "sampled")
    assert all("token_ids" not in node and "logprobs" not in node for node in known[False])
    assert [node["kind"] for node in known[False]] == [node["kind"] for node in known[True]]
