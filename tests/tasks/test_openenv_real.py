"""Episodes with OpenEnv's own server, in an environment of its own: the echo that it ships, and a game."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.openenv import OpenEnvEnvironment
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.runs.recipes import load
from tests.tasks.scripted import play

pytestmark = [pytest.mark.long, pytest.mark.sandbox]

HERE = Path(__file__).resolve().parents[2]
REAL = Path(__file__).with_name("openenv_real")
# With the index, proxy and certificates of pip, as set-up has it.
INSTALL = """
python=$1 die=; . infra/setup/packages.sh; use_pips_sources
uv venv --quiet --python "$1" "$2" && uv pip install --quiet --python "$2/bin/python" --requirement "$3"
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment with openenv."""
    path = f"{Path(sys.prefix).parent / '.venv-uv' / 'bin'}:{os.environ['PATH']}"
    if shutil.which("uv", path=path) is None:
        pytest.skip("there is no uv to make the environment of openenv with")
    made = tmp_path_factory.mktemp("openenv") / "venv"
    command = ["bash", "-c", INSTALL, "install", sys.executable, str(made), str(REAL / "requirements.txt")]
    done = subprocess.run(command, cwd=HERE, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"openenv cannot be installed: {done.stderr.strip()[-400:]}")
    return made / "bin"


def served(programs: Path, folder: Path, app: str) -> tuple[str, ...]:
    words = ("-m", "uvicorn", app, "--host", "127.0.0.1", "--port", "{port}")
    return ("env", f"PYTHONPATH={folder}", str(programs / "python"), *words)


def played(
    made: OpenEnvEnvironment, cells: list[list[str]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[Trajectory], pa.Table]:
    """The trajectories of a question, each of which plays its cells, and their scores."""
    storage, layout = Storage(StorageSettings(root=str(folder / "root"))), DataLayout("data")
    stored.write({"game": made}, storage, layout)
    config = load("tiny-cpu", ["agent.context_tokens=900", "agent.action_tokens=400", "rollout.attempts=1"])
    prompts = stored.read(storage, layout, "train").slice(1, 1)
    prompts = prompts.append_column("group", prompts["id"])
    rows = task_rows(prompts, len(cells), 0)
    table = play(monkeypatch, config, storage, layout, {"game": EnvironmentPlan(sessions=made.session_source())}, rows, cells)
    paid = RewardSettings(qa=1.0, format=0.0, execution=0.0)
    return from_table(table), score_table(with_references(table, prompts), paid)


def test_the_echo_that_it_ships(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server has one session, so that the episodes wait for each other."""
    subprocess.run([programs / "openenv", "init", "echo_test", "--output-dir", tmp_path], check=True, capture_output=True)
    command = served(programs, tmp_path / "echo_test", "server.app:app")
    made = OpenEnvEnvironment(kind="openenv", command=command, train=4, held_out=1)
    cells = [[f"print(echo_test('{'x' * length}'))", "submit_final_answer('done')"] for length in range(8)]
    trajectories, scored = played(made, cells, tmp_path, monkeypatch)
    assert [each.failure for each in trajectories] == [""] * 8
    assert trajectories[3].steps[0].observation == "{'echoed_message': 'xxx', 'message_length': 3, 'done': False}"
    assert trajectories[3].question.endswith("Echo Test environment ready!\nmessage_length: 0")
    assert [steps[0] for steps in scored["step_rewards"].to_pylist()] == pytest.approx([0.1 * length for length in range(8)])


def test_a_game_of_two_actions(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = OpenEnvEnvironment(kind="openenv", command=served(programs, REAL, "doors:app"), train=4, held_out=1)
    listens = "for door in (1, 2, 3):\n    if listen(door)['heard'] == 'a prize':\n        print(open_door(door))"
    tries = "for wrong in (listen, open_door):\n    try: wrong(7)\n    except Exception as error: print(error)"
    cells = [
        ["print(listen(2))", "print(open_door(2))"],
        [listens],
        [tries, "open_door(1)"],
        ["print(open_door('x'))", "1", "2", "3"],
    ]
    trajectories, scored = played(made, cells * 2, tmp_path, monkeypatch)
    assert [str(each.status) for each in trajectories] == ["done", "done", "done", "step_limit"] * 2
    assert trajectories[0].question == "Open the door of the prize.\n\nthree doors are before you"
    assert trajectories[0].steps[1].observation == "{'heard': 'the end', 'done': True}"
    refused = trajectories[2].steps[0].observation
    assert "doors.py" not in refused  # the exception names a file of the host
    assert refused.count("\n") == 1
    assert scored["success"].to_pylist() == [1.0, 1.0, 0.0, 0.0] * 2
    assert scored["step_rewards"].to_pylist()[:3] == [pytest.approx([0.1, 1.0]), pytest.approx([1.2]), [0.0, 0.0]]
    assert json.loads(trajectories[0].outcome)["metrics"]["actions"] == 2
