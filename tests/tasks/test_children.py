"""Agents that cells call, in real sandboxes."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nbrl.agent.episode import Episode, Task
from nbrl.agent.policies.recorded import RecordedPolicy
from nbrl.agent.settings import AgentSettings, ChildSettings
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.rollout.children import ChildKernels, kernels_at_once
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from tests.agent.test_children import ByTask
from tests.agent.test_episode import TASK, TOKENIZER
from tests.flows.model_server import act
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox

QUESTION = TASK.question


def play(
    lab: Lab,
    scripts: Mapping[str, list[str]],
    together: int = 1,
    cell_timeout_s: float = 20.0,
    deadline_s: float = 60.0,
    policies: Sequence[ByTask] = (),
    **limits: Any,
) -> list[Trajectory]:
    """Run the same question so many times at once, over kernels for one episode."""
    children = ChildSettings(**limits)
    agent = AgentSettings(max_steps=4, cell_timeout_s=cell_timeout_s, deadline_s=deadline_s, children=children)
    equipment = {"": Equipment(Corpus.in_memory(["Tilo was born in Keldra."]))}

    async def one(notebooks: Notebooks, kernels: ChildKernels, number: int) -> Trajectory:
        policy = policies[number] if policies else ByTask(scripts)
        task = Task(f"q-{number}", "q", number, QUESTION, "", number)
        calls = kernels.of(task, policy, TOKENIZER, agent)
        async with notebooks.new("", "", children=calls) as (kernel, toolbox):
            wired = SandboxedKernel(kernel, calls)
            return await Episode(task, policy, wired, toolbox, TOKENIZER, agent, children=calls).run()

    async def run() -> list[Trajectory]:
        sandbox = lab.settings(max_live=kernels_at_once(agent, together))
        async with Notebooks.open(ToolSettings(), equipment, sandbox) as notebooks:
            kernels = ChildKernels(notebooks, agent, together)
            return await asyncio.gather(*(one(notebooks, kernels, number) for number in range(together)))

    return asyncio.run(run())


def test_agents_work_at_once_in_notebooks_of_their_own_with_the_files_that_they_are_given(shared_lab: Lab) -> None:
    asks = (
        "import asyncio\nopen('a.txt', 'w').write('lamp')\nsaid = await asyncio.gather(agent('read it', files=['a.txt'], "
        "collect=['b.txt', 'gone.txt']), agent('look', 'Tilo'))\nprint(said, open('b.txt').read(), 'x' in globals())"
    )
    (made,) = play(
        shared_lab,
        {
            QUESTION: [act(asks), act("submit_final_answer(said[0])")],
            "read it\n\nFiles in the working folder:\n- a.txt": [
                act("x = open('a.txt').read()\nopen('b.txt', 'w').write(x * 2)\nsubmit_final_answer(x)")
            ],
            "look\n\nTilo": [act("submit_final_answer(search('Tilo born'))")],
        },
    )
    assert made.steps[0].observation == "['lamp', 'Tilo was born in Keldra.'] lamplamp False"
    assert (made.status, made.answer) == (Status.ANSWERED, "lamp")
    assert [call.name for call in made.children[1].steps[0].tool_calls] == ["search"]


def test_the_time_of_a_cell_stands_still_while_its_children_run(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [act("print(await agent('wait'))"), act("while True: pass")],
        "wait": [act("import time; time.sleep(0.8)"), act("import time; time.sleep(0.8)\nsubmit_final_answer('done')")],
    }
    (made,) = play(shared_lab, scripts, cell_timeout_s=1.0)
    assert [step.cell_status for step in made.steps[:2]] == ["ok", "timeout"]
    assert made.steps[0].observation == "done"


def test_the_seconds_of_children_end_them_and_the_cell_goes_on(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [act("print(await agent('wait'))"), act("await agent('wait')"), act("submit_final_answer(1)")],
        "wait": [act("import time; time.sleep(30)")],
    }
    (made,) = play(shared_lab, scripts, seconds=1.0)
    assert made.steps[0].observation == "no answer: timeout"
    assert "no seconds are left in the budget" in made.steps[1].observation
    assert (made.answer, made.children[0].status) == ("1", Status.TIMEOUT)


def test_children_of_children_never_wait_for_one_another(shared_lab: Lab) -> None:
    ask = "import asyncio\nx = await asyncio.gather(*[agent({!r}) for _ in range(3)])\nsubmit_final_answer(len(x))"
    scripts = {
        QUESTION: [act(ask.format("outer"))],
        "outer": [act(ask.format("inner"))],
        "inner": [act("submit_final_answer(1)")],
    }
    done = play(shared_lab, scripts, together=2, depth=2, calls=20)
    assert [made.answer for made in done] == ["3", "3"]
    assert [len(made.children) for made in done] == [12, 12]


def test_a_call_that_its_cell_gave_up_is_over_with_the_cell(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [
            act("import asyncio\nleft = asyncio.ensure_future(agent('wait'))\nawait asyncio.sleep(0.3)"),
            act("try:\n    await left\nexcept RuntimeError as error:\n    print(error)"),
            act("submit_final_answer(1)"),
        ],
        "wait": [act("import time; time.sleep(30)")],
    }
    (made,) = play(shared_lab, scripts)
    assert "the cell that called has ended" in made.steps[1].observation
    assert made.children[0].status is Status.TIMEOUT
    assert made.seconds < 20


@pytest.mark.parametrize(
    "sent",
    ["{}", "{'begin': 3, 'wait': True}", "{'begin': [[1, 'search', {}]], 'wait': True}", "{'begin': [['x']] * 9, 'wait': False}"],
)
def test_what_a_cell_sends_over_the_channel_itself_is_harmless(shared_lab: Lab, sent: str) -> None:
    scripts = {QUESTION: [act(f"print(host_call('awaited_calls', {sent}))"), act("submit_final_answer(1)")]}
    (made,) = play(shared_lab, scripts)
    said = made.steps[0].observation
    assert "await those" in said or "there is no 'search' to await" in said
    assert (made.answer, made.children) == ("1", [])


def test_no_child_lives_longer_than_the_agent_that_called_it(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [act("print(await agent('wait'))\nwhile True: pass")],
        "wait": [act("import time; time.sleep(30)")],
    }
    (made,) = play(shared_lab, scripts, cell_timeout_s=20.0, deadline_s=1.5)
    assert made.answer is None
    assert made.children[0].status is Status.TIMEOUT
    assert made.seconds < 10


def test_more_calls_than_other_tools_may_make_are_all_recorded_and_served_again(shared_lab: Lab) -> None:
    asked = "import asyncio\nsaid = await asyncio.gather(*[llm(str(n)) for n in range(300)])\nprint(len(said), said[299])"
    scripts = {QUESTION: [act(asked), act("submit_final_answer(said[0])")], **{str(n): [f"so {n}"] for n in range(300)}}
    (made,) = play(shared_lab, scripts, calls=300)
    assert made.steps[0].observation == "300 so 299"
    assert (len(made.steps[0].tool_calls), len(made.children)) == (300, 300)
    again = asyncio.run(replayed(shared_lab, made))
    assert [step.observation for step in again.steps] == [step.observation for step in made.steps]


async def replayed(lab: Lab, recorded: Trajectory) -> Trajectory:
    agent = AgentSettings(max_steps=4)
    policy = RecordedPolicy(recorded.steps, agent, TOKENIZER)
    async with (
        Notebooks.open(ToolSettings(), {"": Equipment()}, lab.settings(max_live=1)) as notebooks,
        notebooks.new("", "", recorded) as (kernel, toolbox),
    ):
        return await Episode(TASK, policy, SandboxedKernel(kernel), toolbox, TOKENIZER, agent).run()


def test_a_cell_that_computes_too_long_after_it_awaited_is_stopped_and_its_kernel_goes_on(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [act("x = await agent('quick')\nwhile True: pass"), act("submit_final_answer(x)")],
        "quick": [act("submit_final_answer('done')")],
    }
    (made,) = play(shared_lab, scripts, cell_timeout_s=1.0)
    assert [step.cell_status for step in made.steps] == ["timeout", "ok"]
    assert made.answer == "done"


def test_other_work_of_a_cell_goes_on_while_its_children_run(shared_lab: Lab) -> None:
    ticks = (
        "import asyncio\nticks = 0\nasync def tick():\n    global ticks\n    while True:\n        await asyncio.sleep(0.02)\n"
        "        ticks += 1\nticking = asyncio.ensure_future(tick())\nawait agent('wait')\nticking.cancel()\nprint(ticks > 10)"
    )
    scripts = {
        QUESTION: [act(ticks), act("submit_final_answer(1)")],
        "wait": [act("import time; time.sleep(1)\nsubmit_final_answer(1)")],
    }
    (made,) = play(shared_lab, scripts)
    assert made.steps[0].observation == "True"


def test_waiting_for_the_kernels_of_others_is_not_taken_from_the_time_of_a_cell(shared_lab: Lab) -> None:
    two = act("import asyncio\nsubmit_final_answer(len(await asyncio.gather(agent('wait'), agent('wait'), agent('wait'))))")
    scripts = {QUESTION: [two], "wait": [act("import time; time.sleep(0.9)\nsubmit_final_answer(1)")]}
    (made,) = play(shared_lab, scripts, cell_timeout_s=1.5)  # over one kernel, one child after the other
    assert (made.answer, [step.cell_status for step in made.steps]) == ("3", ["ok"])


def test_a_cell_without_children_of_its_own_has_its_time_also_in_a_child(shared_lab: Lab) -> None:
    scripts = {
        QUESTION: [act("submit_final_answer(await agent('outer'))")],
        "outer": [act("while True: pass"), act("submit_final_answer('stopped')")],
    }
    (made,) = play(shared_lab, scripts, cell_timeout_s=1.0, depth=2)
    assert made.answer == "stopped"
    assert made.seconds < 20


def test_what_a_child_called_ends_with_it(shared_lab: Lab) -> None:
    policy = ByTask(
        {
            QUESTION: [
                act("import asyncio\nleft = asyncio.ensure_future(agent('outer'))\nawait asyncio.sleep(1)"),
                act("import time; time.sleep(2)\nsubmit_final_answer(1)"),
            ],
            "outer": [act("await agent('inner')")],
            "inner": [act("import time; time.sleep(0.3)")],
        }
    )
    (made,) = play(shared_lab, {}, policies=[policy], depth=2)
    asked = [prompt.messages[1].body for prompt in policy.prompts]
    assert "inner" in asked
    assert asked[-1] == QUESTION  # once the first cell had ended, nothing was asked for its children
    assert [child.task for child in made.children] == ["outer", "inner"]
