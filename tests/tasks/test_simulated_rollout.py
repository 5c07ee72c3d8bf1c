"""A simulated search in a real kernel: the host's model knows the answers, and nothing of the sandbox does."""

from pathlib import Path

import pytest

from nbrl.agent.trajectory import Status, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import WorldEnvironment
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.runs.recipes import load
from tests.agent.tool_server import Said, serving
from tests.tasks.scripted import play

DOCUMENTS = {"choices": [{"message": {"role": "assistant", "content": "1. A town lies there.\n2. A river flows."}}]}
LOOK = """
import os
print(search('who'))
seen = repr(globals()) + repr(os.environ) + ''.join(open(f'/proc/self/{name}').read() for name in ('cmdline', 'environ'))
print([name for name in os.listdir('.')])
"""


@pytest.mark.more
@pytest.mark.sandbox
def test_the_model_is_told_the_answers_and_the_kernel_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write({"world": WorldEnvironment(kind="world", train=2, held_out=1)}, storage, layout)
    prompts = stored.read(storage, layout, "train")
    prompts = prompts.append_column("group", prompts["id"])
    with serving(Said(DOCUMENTS)) as server:
        model = f"{{base_url: '{server.url}/v1', name: m, key: null}}"
        search = f"{{engine: simulated, model: {model}, noise: [1, 1]}}"
        tools = f"rollout.tools={{default: [search], search: {search}}}"
        config = load("tiny-cpu", [tools, "agent.context_tokens=900", "agent.action_tokens=400", "agent.observation_chars=2000"])
        for trained, kind in ((0.5, "noisy"), (None, "useful")):
            rows = task_rows(prompts, 1, 0, config.rollout.tools.search)
            assert all(row["answers"] for row in rows)
            cells = [[LOOK, "submit_final_answer('x')"]] * 2
            table = play(monkeypatch, config, storage, layout, {"world": EnvironmentPlan()}, rows, cells, trained)
            made = from_table(table)
            assert [each.status for each in made] == [Status.ANSWERED] * 2, [each.failure for each in made]
            assert all("[1] A town lies there." in each.steps[0].observation for each in made)
            told = [request.body["messages"][0]["content"] for request in server.asked[-2:]]
            for each, row in zip(made, rows, strict=True):
                (answer,) = row["answers"]
                assert any(f"Correct answer: {answer}\n" in one and f" {kind} documents" in one for one in told)
                # Digits of seconds may be those of an answer.
                seconds = {"policy_seconds": True, "kernel_seconds": True, "tool_calls": {"__all__": {"seconds"}}}
                assert not any(answer in step.model_dump_json(exclude=seconds) for step in each.steps)
    assert not any(row["answers"] for row in task_rows(prompts, 1, 0))
