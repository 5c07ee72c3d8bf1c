"""Models and agents that cells call: what they may use, what is recorded, and that all of it is one trajectory."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from nbrl.agent.budget import ChildBudget
from nbrl.agent.children.children import Children, NoFiles, OpenedChild
from nbrl.agent.episode import Episode
from nbrl.agent.errors import PolicyError, ToolError
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings, ChildSettings
from nbrl.agent.tools.awaited import with_awaited
from nbrl.agent.tools.base import Toolbox, describe
from nbrl.agent.tools.exchange import handlers
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.trajectory import DEEPEST, ROOT, Status, Trajectory, from_table, to_table
from tests.agent.test_episode import TASK, TOKENIZER
from tests.flows.model_server import act

QUESTION = TASK.question
Fault = Callable[[str], None]


class ByTask:
    """Plays the script of the task that the prompt begins with."""

    def __init__(self, scripts: Mapping[str, list[str]], fault: Fault = lambda task: None) -> None:
        self.scripts = {task: ScriptedPolicy(script, TOKENIZER) for task, script in scripts.items()}
        self.prompts = list[Prompt]()
        self._fault = fault

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        self.prompts.append(prompt)
        task = prompt.messages[1].body
        self._fault(task)
        return await self.scripts[task].generate(prompt, max_tokens, seed)


def play(scripts: Mapping[str, list[str]], policy: ByTask | None = None, **limits: Any) -> Trajectory:
    settings = AgentSettings(max_steps=4, children=ChildSettings(**limits))
    policy = policy or ByTask(scripts)

    def equipped(children: Children | None) -> OpenedChild:
        toolbox = Toolbox(() if children is None else children.tools)
        answers = handlers(toolbox, str if children is None else children.budget.refusal)

        async def call(name: str, arguments: dict[str, Any]) -> Any:
            return await answers[name](arguments)

        return OpenedChild(InlineKernel(prelude(toolbox.tools.values()), call), toolbox, NoFiles())

    def opens(children: Children | None, depth: int) -> AbstractAsyncContextManager[OpenedChild]:
        @asynccontextmanager
        async def opened() -> AsyncIterator[OpenedChild]:
            yield equipped(children)

        return opened()

    async def run() -> Trajectory:
        assert settings.children is not None
        children = Children(TASK, policy, TOKENIZER, settings, opens, ChildBudget(settings.children))
        kernel, toolbox, _ = equipped(children)
        return await Episode(TASK, policy, kernel, toolbox, TOKENIZER, settings, children=children).run()

    return asyncio.run(run())


TWO = act(
    "import asyncio\nsaid = await asyncio.gather(agent('left?'), agent('right?', 'look twice'), llm('and up?'))\nprint(said)"
)
SCRIPTS = {
    QUESTION: [TWO, act("submit_final_answer(said[0])")],
    "left?": [act("submit_final_answer('a lamp')")],
    "right?\n\nlook twice": [act("seen = 1"), act("submit_final_answer('a rope')")],
    "and up?": ["the sky"],
}


def test_children_answer_the_cell_and_are_part_of_its_trajectory() -> None:
    made = play(SCRIPTS)
    assert (made.status, made.answer) == (Status.ANSWERED, "a lamp")
    assert made.steps[0].observation == "['a lamp', 'a rope', 'the sky']"
    assert [(child.caller, child.kind, child.task, child.answer, len(child.steps)) for child in made.children] == [
        (0, "agent", "left?", "a lamp", 1),
        (0, "agent", "right?\n\nlook twice", "a rope", 2),
        (0, "llm", "and up?", "the sky", 1),
    ]
    calls = {call.name: call.result for call in made.steps[0].tool_calls}
    assert calls["llm"] == '{"answer": "the sky", "status": "answered"}'
    assert len(made.steps[0].tool_calls) == 3


def test_each_child_is_a_root_of_the_tree_whose_steps_have_numbers_of_their_own() -> None:
    made = play(SCRIPTS)
    roots = [node for node in made.nodes if node.parent == ROOT]
    assert [node.step for node in roots] == [0, 2, 3, 5]
    sampled = made.sampled()
    assert sorted(node.step for node in sampled) == list(range(len(made.all_steps))) == list(range(6))
    said = {node.step: TOKENIZER.decode(node.token_ids) for node in sampled}
    assert said[2] == SCRIPTS["left?"][0]
    assert said[4] == SCRIPTS["right?\n\nlook twice"][1]
    assert said[5] == "the sky"
    assert from_table(to_table([made])) == [made]


def test_agents_of_agents_are_children_of_the_step_that_called_them() -> None:
    scripts = {
        QUESTION: [act("x = await agent('outer')"), act("submit_final_answer(x)")],
        "outer": [act("x = await agent('inner')"), act("submit_final_answer(x * 2)")],
        "inner": [act("submit_final_answer('deep')")],
    }
    made = play(scripts, depth=2)
    assert made.answer == "deepdeep"
    assert [(child.task, child.caller) for child in made.children] == [("outer", 0), ("inner", 2)]
    assert [node.step for node in made.nodes if node.parent == ROOT] == [0, 2, 4]
    flat = play(scripts, depth=1)
    assert flat.children[0].steps[0].observation == "NameError: name 'agent' is not defined"


def test_the_budget_is_that_of_the_whole_trajectory_and_in_view() -> None:
    many = act("import asyncio\nprint(await asyncio.gather(*[llm('and up?') for _ in range(3)], return_exceptions=True))")
    policy = ByTask({QUESTION: [many, act("submit_final_answer(1)")], "and up?": ["the sky"]})
    made = play({}, policy, calls=2, tokens=500, seconds=60)
    assert "no calls are left in the budget" in made.steps[0].observation
    assert len(made.children) == 2
    tails = [prompt.messages[-1].body for prompt in policy.prompts if prompt.messages[1].body == QUESTION]
    assert ", calls 2, their tokens 500, their seconds 60</budget>" in tails[0]
    assert ", calls 0, their tokens 400, their seconds 50</budget>" in tails[1]


def test_tokens_are_never_sampled_beyond_the_budget() -> None:
    many = act("import asyncio\nprint(await asyncio.gather(*[llm('and up?', 50) for _ in range(8)], return_exceptions=True))")
    made = play({QUESTION: [many, act("submit_final_answer(1)")], "and up?": ["a" * 60]}, tokens=120)
    assert sum(len(node.token_ids) for node in made.sampled() if node.step > 1) == 120
    statuses = [child.status for child in made.children]
    assert statuses.count(Status.ANSWERED) == 3
    assert set(statuses) <= {Status.ANSWERED, Status.TOKEN_LIMIT}


def test_tokens_that_others_may_give_back_are_still_there() -> None:
    several = act("import asyncio\nprint(await asyncio.gather(*[agent(task) for task in ('left?', 'up?', 'down?')]))")
    done = [act("submit_final_answer(1)")]
    made = play({QUESTION: [several, *done], "left?": done, "up?": done, "down?": done}, tokens=3072)
    assert made.steps[0].observation == "['1', '1', '1']"


def test_a_child_that_has_no_more_tokens_has_no_answer() -> None:
    made = play(
        {QUESTION: [act("print(await agent('left?'))"), act("submit_final_answer(1)")], "left?": [act("seen = 1")]}, tokens=60
    )
    assert made.steps[0].observation == "no answer: token_limit"
    assert (made.status, made.children[0].status) == (Status.ANSWERED, Status.TOKEN_LIMIT)


def test_a_fault_of_the_infrastructure_in_a_child_is_one_of_the_trajectory() -> None:
    def fault(task: str) -> None:
        if task == "left?":
            raise PolicyError("the engine does not answer")

    made = play({}, ByTask(SCRIPTS, fault))
    assert made.status is Status.FAILED
    assert "the engine does not answer" in made.failure


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("llm('')", "prompt"),
        ("llm('x', max_tokens=0)", "max_tokens"),
        ("llm(3)", "prompt"),
        ("agent('x', files=['gone.txt'])", "gone.txt"),
        ("agent('x' * 100_000_000)", "bytes"),
        ("llm('x' * 180_000)", "tokens, and 25600 are allowed"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_and_leaves_no_child(call: str, said: str) -> None:
    made = play({QUESTION: [act(f"await {call}"), act("submit_final_answer(1)")]})
    assert made.status is Status.ANSWERED
    assert said in made.steps[0].observation
    assert not made.children


def test_children_that_are_not_trained_are_marked() -> None:
    made = play(SCRIPTS, credit="none")
    assert {node.kind for node in made.sampled() if node.step > 1} == {"untrained"}
    assert {node.kind for node in made.sampled() if node.step < 2} == {"sampled"}


class Lookup:
    async def agent(self, city: str) -> str:
        """Find an agent in a city."""
        return f"one in {city}"


def test_a_tool_of_the_same_name_is_a_plain_function_where_there_are_no_children() -> None:
    tool = FunctionTool(Lookup().agent)
    assert describe([tool]).startswith("agent(city: str)")

    async def run() -> CellResult:
        toolbox = Toolbox([tool])
        return await InlineKernel(prelude([tool]), toolbox.call).execute("print(agent('Rome'))", 5.0)

    assert [output.text for output in asyncio.run(run()).outputs] == ["one in Rome\n"]
    with pytest.raises(ToolError, match=r"'agent' has the name of a call of agent\.children"):
        with_awaited([tool])


def test_a_child_too_far_below_its_trajectory_is_none() -> None:
    own = {"id": "q", "group": "q", "sample": 0, "question": "", "ability": "", "status": "answered", "answer": "1", "nodes": []}
    child = {"kind": "agent", "task": "t", "status": "answered", "answer": "1", "steps": [{}]}
    with pytest.raises(ValidationError):
        ChildSettings(depth=DEEPEST + 1)
    assert ChildSettings(depth=DEEPEST).depth == DEEPEST
    chain = [{**child, "caller": number} for number in range(DEEPEST + 1)]
    assert len(Trajectory.model_validate({**own, "steps": [{}], "children": chain[:-1]}).children) == DEEPEST
    with pytest.raises(ValidationError, match="more than 4 levels"):
        Trajectory.model_validate({**own, "steps": [{}], "children": chain})
