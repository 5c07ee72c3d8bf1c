"""The harness for verifiers, in an environment of its own: `vf-eval` pays what a scripted model's answers are worth."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chat_server import Reply, Server, running
from tests.flows.model_server import act

pytestmark = [pytest.mark.long, pytest.mark.process]

HERE = Path(__file__).resolve().parents[2]
EXAMPLE = HERE / "examples" / "verifiers"
ENVIRONMENT = Path(sys.prefix)
# With the index, proxy and certificates of pip, as set-up has it.
INSTALL = """
python=$1 die=; . infra/setup/packages.sh; use_pips_sources
uv venv --quiet --python "$1" "$2" && uv pip install --quiet --python "$2/bin/python" --requirement "$3"
"""


@pytest.fixture(scope="module")
def vf_eval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = f"{ENVIRONMENT.parent / '.venv-uv' / 'bin'}:{os.environ['PATH']}"
    if shutil.which("uv", path=path) is None:
        pytest.skip("there is no uv to make the environment of verifiers with")
    made = tmp_path_factory.mktemp("verifiers") / "venv"
    command = ["bash", "-c", INSTALL, "install", sys.executable, str(made), str(EXAMPLE / "requirements.txt")]
    done = subprocess.run(command, cwd=HERE, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"verifiers cannot be installed: {done.stderr.strip()[-400:]}")
    return made / "bin" / "vf-eval"


def numbers(question: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", question.partition("<budget>")[0])]


def expected(question: str) -> str | None:
    """The scripted answer: right for an even first number, else wrong, or none for a multiple of 3."""
    first = numbers(question)[0]
    return str(math.gcd(*numbers(question))) if first % 2 == 0 else None if first % 3 == 0 else "zzz"


class Scripted(Server):
    def reply(self, body: dict[str, Any]) -> Reply:
        answer = expected(body["messages"][1]["content"])
        said = act("pass" if answer is None else f"submit_final_answer({answer!r})")
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        content = {"id": "1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice], "usage": usage}
        return Reply(content)


def test_an_evaluation_pays_right_answers_and_no_others(vf_eval: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{EXAMPLE}:{HERE}", "PYTHONWARNINGS": "ignore"}
    options = {
        "--env.taskset.dataset": "gcd",
        "--env.taskset.size": "6",
        "--env.agent.harness.id": "nbrl_harness",
        "--env.agent.harness.nbrl": str(ENVIRONMENT / "bin" / "nbrl"),
        "--env.agent.harness.max-steps": "2",
        "--env.agent.runtime.type": "subprocess",
        "--push": "False",
        "--model": "scripted",
        "--output-dir": str(tmp_path),
    }
    with running(Scripted()) as server:
        command = [str(vf_eval), "rg_tasks", *(word for pair in options.items() for word in pair)]
        command += ["--client.base-url", f"{server.url}/v1"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    (file,) = tmp_path.rglob("traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [episode["ok"] for episode in episodes] == [True] * 6
    paid = []
    for trace in (episode["traces"][0] for episode in episodes):
        answer = expected(trace["task"]["data"]["prompt"])
        assert trace["info"] == {"answer": answer, "status": "step_limit" if answer is None else "answered"}
        right = answer == trace["task"]["data"]["answer"]
        assert trace["rewards"]["correct"]["score"] == float(right)
        calls = [node for node in trace["nodes"] if node.get("parent") == 0]
        assert len(calls) == (2 if answer is None else 1), "each step is a branch below the system prompt"
        paid.append((right, answer is None))
    assert {*paid} == {(True, False), (False, False), (False, True)}


def test_the_locked_versions_are_those_that_the_page_names() -> None:
    locked = (EXAMPLE / "requirements.txt").read_text(encoding="utf-8").splitlines()[1:]
    assert all(re.match(r"[\w.-]+==[\w.]+$", line) for line in locked)
    assert {"verifiers==0.4.0", "reasoning-gym==0.1.25", "mcp==2.0.0"} <= {*locked}
