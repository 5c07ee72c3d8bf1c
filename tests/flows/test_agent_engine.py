"""`nbrl agent` against a real SGLang server of the shipped policy, which answers a question of its world."""

from pathlib import Path

import pytest

from nbrl.agent.tokens.tokenizer import UNKNOWN
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.engine.server import EngineServer
from tests.flows.test_agent_cli import run

pytestmark = pytest.mark.more

QUESTION, PASSAGE = "What is the lake of Godur?", "The lake of Godur is Kasun."


def ask(folder: Path, url: str, key: str) -> Trajectory:
    """What comes of the question, likeliest tokens only, under the prompt that the policy knows."""
    (folder / "corpus.txt").write_text(PASSAGE)
    told = ["--recipe", "tiny-cpu", "--set", "agent.action_tokens=48", "--set", "evaluate.sampling.temperature=0"]
    others = ["--corpus", "corpus.txt", "--no-save", "--json", "--api-key-env", "MY_KEY"]
    done = run(folder, QUESTION, "--endpoint", url, *told, *others, MY_KEY=key)
    assert done.returncode in (0, 3), done.stderr
    return Trajectory.model_validate_json(done.stdout)


def test_in_token_ids_it_answers(tmp_path: Path, tiny_engine: EngineServer) -> None:
    found = ask(tmp_path, tiny_engine.url, tiny_engine.key)
    assert (found.status, found.answer) == (Status.ANSWERED, "Kasun")
    assert PASSAGE in found.steps[0].observation
    for node in found.sampled():
        assert UNKNOWN not in node.token_ids
        assert len(node.logprobs) == len(node.token_ids)
        assert node.weights_version == "initial"
    (tmp_path / "saved.json").write_text(found.model_dump_json())
    again = run(tmp_path, "--replay", "saved.json", "--no-save")
    assert (again.returncode, again.stdout) == (0, "Kasun\n"), again.stderr
    assert "all 2 steps came out as they were recorded" in again.stderr


def test_through_the_chat_api_it_acts(tmp_path: Path, tiny_engine: EngineServer) -> None:
    found = ask(tmp_path, f"{tiny_engine.url}/v1", tiny_engine.key)
    assert found.status is not Status.FAILED
    assert found.steps[0].code == "search('lake of Godur')"
    assert PASSAGE in found.steps[0].observation


def test_a_context_longer_than_the_model_reads_is_refused(tmp_path: Path, tiny_engine: EngineServer) -> None:
    for url in (tiny_engine.url, f"{tiny_engine.url}/v1"):
        done = run(tmp_path, QUESTION, "--endpoint", url, "--api-key-env", "MY_KEY", MY_KEY=tiny_engine.key)
        assert done.returncode == 1
        assert "reads at most 1024 tokens" in done.stderr
