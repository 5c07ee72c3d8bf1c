"""Branches: the recorded beginning of a trajectory is played again, believed where all is as it was, and goes on from there."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from nbrl.agent.episode import Episode
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.agent.trunk import Trunk, playable, seeding
from nbrl.tasks.learner.batch.examples import Example, TreeNode
from nbrl.tasks.learner.batch.tree import Forest
from tests.agent.test_episode import TASK, TOKENIZER
from tests.flows.model_server import act

SETTINGS = AgentSettings(max_steps=8)
ACTIONS = [
    act("import random\nseen = [random.random()]\nprint(look('hall'), seen)"),
    act("1 / 0"),
    "no tags at all",
    act("notepad.add_facts(['a lamp'])\nprint(look('hall'))"),
    act("submit_final_answer(len(seen))"),
]


class House:
    """A tool that gives another answer each time."""

    def __init__(self, first: int = 0) -> None:
        self.calls = first

    async def look(self, place: str) -> str:
        """Look at a place."""
        self.calls += 1
        return f"{place} {self.calls}"


def seeds_of(actions: Sequence[str]) -> tuple[Any, list[int]]:
    """A policy that plays actions and notes its seeds."""
    asked, script = list[int](), ScriptedPolicy(actions, TOKENIZER)

    class Noting:
        async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
            asked.append(seed)
            return await script.generate(prompt, max_tokens, seed)

    return Noting(), asked


def played(
    policy: Any, house: House, stateful: bool = False, seed: int = 5, trunk: Callable[[Any], Trunk] | None = None
) -> Trajectory:
    async def run() -> Trajectory:
        toolbox = Toolbox([FunctionTool(house.look)])
        kernel = InlineKernel(prelude(toolbox.tools.values()), toolbox.call)
        await kernel.execute(seeding(seed), 5.0)
        if trunk is None:
            return await Episode(TASK, policy, kernel, toolbox, TOKENIZER, SETTINGS).run()
        made = trunk(policy)
        made.play_tools(toolbox, {"look"} if stateful else ())
        return made.as_branch(await Episode(TASK, made, kernel, toolbox, TOKENIZER, SETTINGS, made).run())

    return asyncio.run(run())


@pytest.fixture
def whole() -> Trajectory:
    return played(seeds_of(ACTIONS)[0], House())


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_a_branch_goes_on_from_the_very_state_of_its_trajectory(whole: Trajectory, steps: int) -> None:
    policy, seeds = seeds_of([act("print(len(seen), look('attic'))"), act("submit_final_answer(seen[0])")])
    house = House(first=100)
    made = played(policy, house, trunk=lambda policy: Trunk(whole, steps, 77, policy))
    assert made.status is Status.ANSWERED
    assert [step.observation for step in made.steps[:steps]] == [step.observation for step in whole.steps[:steps]]
    assert made.steps[steps].observation == "1 attic 101"  # recorded calls were not made again
    assert house.calls == 101
    assert made.answer in whole.steps[0].observation
    assert seeds == [77 + steps, 77 + steps + 1]
    assert sorted(node.step for node in made.sampled()) == [steps, steps + 1]


def test_the_trunk_is_forwarded_once_and_trained_where_it_was_sampled(whole: Trajectory) -> None:
    made = played(seeds_of([act("submit_final_answer(2)")])[0], House(), trunk=lambda policy: Trunk(whole, 4, 0, policy))

    def example(trajectory: Trajectory) -> Example:
        nodes = [
            TreeNode(node.parent, node.kind == "sampled", node.step, np.array(node.token_ids), np.array(node.logprobs))
            for node in trajectory.nodes
        ]
        return Example(trajectory.id, nodes, {node.step: 1.0 for node in trajectory.sampled()})

    alone, both = Forest([example(whole)]), Forest([example(whole), example(made)])
    own = sum(len(node.token_ids) for node in made.sampled())
    assert both.tokens == alone.tokens + own
    assert both.targets == alone.targets + own


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda trajectory: setattr(trajectory.steps[0], "observation", "x"), "step 1 has another output or notepad"),
        (lambda trajectory: setattr(trajectory.steps[3], "notepad", "{}"), "step 4 has another output or notepad"),
        (lambda trajectory: trajectory.nodes[1].token_ids.append(7), "step 1 is asked otherwise"),
        (lambda trajectory: trajectory.steps[0].tool_calls.clear(), "step 1 has another output or notepad"),
    ],
)
def test_a_state_that_is_not_the_recorded_one_makes_no_branch(
    whole: Trajectory, change: Callable[[Trajectory], object], words: str
) -> None:
    change(whole)
    policy, seeds = seeds_of([act("submit_final_answer(2)")])
    made = played(policy, House(), trunk=lambda policy: Trunk(whole, 4, 0, policy))
    assert made.status is Status.FAILED
    assert words in made.failure
    assert seeds == []


def test_other_random_numbers_make_no_branch(whole: Trajectory) -> None:
    made = played(seeds_of([act("1")])[0], House(), seed=6, trunk=lambda policy: Trunk(whole, 2, 0, policy))
    assert "step 1 has another output" in made.failure


@pytest.mark.parametrize(("first", "made"), [(0, True), (1, False)])
def test_tools_with_a_state_are_called_again_and_must_answer_as_they_did(whole: Trajectory, first: int, made: bool) -> None:
    house = House(first)
    policy = seeds_of([act("submit_final_answer(look('attic'))")])[0]
    branch = played(policy, house, stateful=True, trunk=lambda policy: Trunk(whole, 4, 0, policy))
    assert (branch.answer, house.calls) == (("attic 3", 3) if made else (None, 2))
    assert made or "look gives another answer than it gave" in branch.failure


def test_what_is_not_recorded_whole_cannot_be_played(whole: Trajectory) -> None:
    assert [playable(step) for step in whole.steps] == [True] * 5
    whole.steps[0].tool_calls[0].complete = False
    whole.steps[1].unrecorded_calls = 1
    whole.steps[3].cell_status = "timeout"
    assert [playable(step) for step in whole.steps] == [False, False, True, False, True]
