"""A program of one's own is trained: the shipped example with every real part, and by hand."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.engine.server import EngineServer
from nbrl.infra.storage import Storage, StorageSettings
from tests.flows.conftest import NBRL, SMALL
from tests.flows.made import audited, record
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more]
EXAMPLE = Path(__file__).parents[2] / "examples" / "programs"


def test_the_shipped_program_is_trained_and_its_run_proves_itself(tmp_path: Path) -> None:
    folder = tmp_path / "programs"
    shutil.copytree(EXAMPLE, folder)
    folder.chmod(0o755)
    tmp_path.chmod(0o755)
    overrides = [part for each in [*SMALL, "iterations=1"] for part in ("--set", each)]
    line = [str(NBRL), "train", str(folder / "recipe.yaml"), "--run", "p", "--home", str(tmp_path / "home"), *overrides]
    done = subprocess.run(line, capture_output=True, text=True, timeout=600, env=mark("program"), check=False)
    check_gone("program")
    assert done.returncode == 0, done.stderr[-3000:]
    storage = Storage(StorageSettings(root=f"{tmp_path}/home/storage"))
    found = record(storage, "p", 0)
    assert found.metrics["mismatch/logprob_max_abs"] <= 1e-3
    trajectories = from_table(storage.read_table(found.rounds[0].trajectories.path))
    assert {step.kind for each in trajectories for step in each.steps} == {"reply"}
    assert any(call.name == "search" and call.ok for each in trajectories for step in each.steps for call in step.tool_calls)
    assert sum(each.answer is not None for each in trajectories) > len(trajectories) / 2
    audited(f"{tmp_path}/home/storage", "p")


def test_a_program_is_tried_by_hand(tiny_engine: EngineServer, tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    shutil.copy(EXAMPLE / "agent.py", program)
    tmp_path.chmod(0o755)
    line = [str(NBRL), "agent", "What is 6 * 7?", "--endpoint", tiny_engine.url, "--program", str(program), "--json", "--no-save"]
    line += ["--tokenizer", str(Path(__file__).parents[2] / "infra/policies/tiny")]
    line += ["--set", "agent.context_tokens=164", "--set", "agent.action_tokens=48", "--set", "agent.max_steps=4"]
    environment = {"NBRL_ENGINE_KEY": tiny_engine.key, **mark("by-hand")}
    done = subprocess.run(
        [*line, "--api-key-env", "NBRL_ENGINE_KEY"], capture_output=True, text=True, env=environment, check=False
    )
    made = json.loads(done.stdout)
    assert (made["steps"][0]["kind"], "<think>" in made["steps"][0]["code"]) == ("reply", True)
    assert made["answer"], done.stderr
