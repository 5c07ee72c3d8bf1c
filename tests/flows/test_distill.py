"""`nbrl distill` against the storage of a run that was really trained."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.runs.checkpoints import checkpoint
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.recipe import write
from nbrl.tasks.warmstart.sources.chat import holds_conversations
from nbrl.tasks.warmstart.sources.successes import RunDemonstrations, successes

pytestmark = pytest.mark.e2e
NBRL = str(Path(sys.executable).with_name("nbrl"))
TINY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"


def _rewards(storage: Storage) -> dict[str, tuple[float, float]]:
    """Success and reward of each trajectory of the training."""
    keys = [key for key in storage.list("runs/small/iterations") if key.endswith("/rewards.parquet")]
    rows = [row for key in keys for row in storage.read_table(key).to_pylist()]
    return {row["trajectory"]: (row["success"], row["total"]) for row in rows}


def test_it_writes_the_best_right_trajectories_of_each_training_question(storage: Storage, tmp_path: Path) -> None:
    command = [NBRL, "distill", "small", "right.parquet", "--best", "2", "--root", storage.settings.root]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, rewards = from_table(pq.read_table(tmp_path / "right.parquet")), _rewards(storage)
    assert found
    assert all(rewards[each.id][0] == 1.0 for each in found)
    by_question: dict[str, list[str]] = {}
    for each in found:
        by_question.setdefault(each.question, []).append(each.id)
    assert max(map(len, by_question.values())) <= 2
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (again.returncode, "exists" in again.stderr) == (1, True)


def test_conversations_are_written_too_and_can_be_learned(storage: Storage, tmp_path: Path) -> None:
    file = tmp_path / "right.jsonl"
    count = write(storage, "small", 1, file)
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(rows) == count == len(successes(storage, "small", 1))
    assert all([turn["role"] for turn in row["messages"]][:2] == ["user", "assistant"] for row in rows)
    assert holds_conversations(file)
    with pytest.raises(ConfigError, match=r"\.jsonl, for conversations"):
        write(storage, "small", 1, tmp_path / "right.csv")


def test_the_first_of_a_question_has_its_highest_reward(storage: Storage) -> None:
    rewards = _rewards(storage)
    one, many = successes(storage, "small", 1), successes(storage, "small", 100)
    assert sum(success == 1.0 for success, _ in rewards.values()) == len(many)
    for each in one:
        assert rewards[each.id][1] == max(rewards[other.id][1] for other in many if other.question == each.question)


def test_the_same_agent_learns_from_the_very_tokens_that_were_sampled(storage: Storage) -> None:
    agent = load("tiny-cpu").agent
    source = RunDemonstrations(kind="run", name="small", root=storage.settings.root)
    source.check()
    found = source.record(DemonstrationAgent(agent, ChatTokenizer.load(TINY, agent)), 0)
    assert [each.nodes for each in found.trajectories] == [each.nodes for each in successes(storage, "small", 1)]


@pytest.mark.more
@pytest.mark.usefixtures("prefect")
def test_a_policy_learns_from_the_successes_of_its_run(home: Path, storage: Storage, tmp_path: Path) -> None:
    flags = ["--from", "small@1", "--demonstrations", "small", "--root", storage.settings.root, "--home", str(home)]
    settings = ["--set", "batch=4", "--set", "checkpoint_steps=100", "--set", "update.workers=1"]
    command = [NBRL, "warmstart", "out", *flags, *settings]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert f"demonstrations: {len(successes(storage, 'small', 1))} demonstrations" in done.stderr
    before = storage.local_path(checkpoint(storage, "small", 1))
    assert before is not None
    old, new = (load_file(folder / "model.safetensors") for folder in (before / HF, tmp_path / "out"))
    assert old.keys() == new.keys()
    assert not all(old[name].equal(new[name]) for name in old)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()
