"""Demonstrations as orders: every step has its batch, and an unfinished warm start goes on with what it planned."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.batch.batch import Batch, batch_of
from nbrl.tasks.learner.orders import UpdateOrder, read_tables
from nbrl.tasks.runs.recipes import load as load_training
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.orders import make_plan, order_of, unseen, walk
from nbrl.tasks.warmstart.recipe import WarmstartArguments, load
from nbrl.tasks.warmstart.sources.source import Demonstrations
from nbrl.tasks.warmstart.start import held_out
from nbrl.tasks.warmstart.work_folder import WarmstartPlan, WorkFolder

TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
OVERRIDES = [
    "phases.copying.demonstrations.world.count=20",
    "phases.habits.demonstrations.world.count=12",
    "phases.copying.epochs=2",
    "phases.habits.epochs=0.5",
    "batch=4",
    "checkpoint_steps=4",
]


def _trajectory(name: str) -> Trajectory:
    return Trajectory(
        id=name, group=name, sample=0, question="", ability="", status=Status.ANSWERED, answer=None, nodes=[], steps=[]
    )


@given(st.integers(1, 20), st.integers(1, 70), st.integers(0, 3))
def test_a_walk_takes_every_demonstration_once_a_pass_under_ids_of_its_own(count: int, length: int, seed: int) -> None:
    walked = walk([_trajectory(str(number)) for number in range(count)], length, seed, "phase")
    assert len(walked) == len({each.id for each in walked}) == length
    times = Counter(each.id.split("-", 2)[2] for each in walked)
    assert max(times.values()) - min([*times.values(), *([0] * (count - len(times)))]) <= 1


def test_blocks_have_the_steps_of_their_phases_and_every_step_its_batch(tmp_path: Path) -> None:
    warmstart = load(WarmstartArguments(), OVERRIDES, Storage(StorageSettings(root="/nowhere")))
    agent = load_training("tiny-cpu").agent
    work, stage = WorkFolder(tmp_path / "out"), DemonstrationAgent(agent, ChatTokenizer.load(TINY, agent))
    plan = make_plan(warmstart, {None: stage}, work, frozenset())
    assert [tuple(block) for block in plan.blocks] == [("copying", 4), ("copying", 4), ("copying", 2), ("habits", 2)]
    assert plan.demonstrations == {"copying": (20, 0), "habits": (12, 0)}
    assert plan.steps == 12
    for number, block in enumerate(plan.blocks):
        order = order_of(warmstart, work, number, block, "digest")
        batch = _batch(work, order)
        assert batch.examples == block.steps * warmstart.batch
        assert len(set(batch.groups)) == batch.examples
        assert {value for steps in batch.steps for value in steps.values()} == {1.0}
        assert (order.initial, order.checkpoint_in is None) == (("digest", True) if number == 0 else ("", False))
    before = work.storage.read_table(order.trajectories[0].key)
    assert work.plan() == plan
    assert work.storage.read_table(order.trajectories[0].key) == before


def _batch(work: WorkFolder, order: UpdateOrder) -> Batch:
    tables = read_tables(order, work.storage)
    return batch_of(tables.trajectories, tables.advantages)


def _planned(tmp_path: Path, demonstrations: Path, held_out: frozenset[str] = frozenset(), **agent: object) -> WarmstartPlan:
    training = load_training("tiny-cpu")
    warmstart = load(
        WarmstartArguments(recipe="tiny", demonstrations=str(demonstrations)), [], Storage(StorageSettings(root="/nowhere"))
    )
    settings = training.agent.model_copy(update=agent)
    stage = DemonstrationAgent(settings, ChatTokenizer.load(TINY, settings))
    work = WorkFolder(tmp_path / "out")
    return make_plan(warmstart, {None: stage}, work, held_out)


def _talk(folder: Path, *questions: str) -> Path:
    lines = [{"messages": [{"role": "user", "content": each}, {"role": "assistant", "content": "yes"}]} for each in questions]
    (folder / "talk.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder / "talk.jsonl"


def test_a_source_that_gives_nothing_is_an_error_that_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"talk\.jsonl has no rows"):
        _planned(tmp_path, _talk(tmp_path))
    with pytest.raises(ConfigError, match=r"1 were left out: .* raise the training's agent\.context_tokens"):
        _planned(tmp_path, _talk(tmp_path, "long " * 200))


def test_questions_that_are_held_out_are_never_demonstrated(tmp_path: Path) -> None:
    plan = _planned(tmp_path, _talk(tmp_path, "Is it?", "Was it?", "Will it?"), frozenset({"Was it?"}))
    assert plan.demonstrations == {"demonstrations": (2, 1)}
    work = WorkFolder(tmp_path / "out")
    asked = work.storage.read_table(work.trajectories(0))["question"].to_pylist()
    assert set(asked) == {"Is it?", "Will it?"}


def test_a_held_out_question_in_other_white_space_or_capitals_is_the_same() -> None:
    asked = [" Who is\tthe baker of Safun?\n", "who IS the baker of Safun?", "Who is the baker of Botur?"]
    played = [_trajectory(str(number)).model_copy(update={"question": each}) for number, each in enumerate(asked)]
    found = unseen(Demonstrations(played), frozenset({"Who is the baker of Safun?"}))
    assert ([each.id for each in found.trajectories], found.left_out) == (["2"], 2)


@pytest.mark.more
def test_no_sum_that_mixed_cpu_holds_out_is_demonstrated(tmp_path: Path) -> None:
    """There are few sums of two numbers, so that some are drawn twice."""
    training = load_training("mixed-cpu")
    few = ["phases.copying=null", "phases.habits.demonstrations.world.count=4", "phases.habits.demonstrations.sums.count=100"]
    warmstart = load(WarmstartArguments(recipe="tiny-mixed"), few, Storage(StorageSettings(root="/nowhere")))
    work, stage = WorkFolder(tmp_path / "out"), DemonstrationAgent(training.agent, ChatTokenizer.load(TINY, training.agent))
    kept_back = held_out(stored.load(training.environments))
    plan = make_plan(warmstart, {None: stage}, work, kept_back)
    assert plan.demonstrations["habits"][1] > 0
    tables = [work.storage.read_table(work.trajectories(number)) for number in range(len(plan.blocks))]
    assert not kept_back & {question for table in tables for question in table["question"].to_pylist()}
