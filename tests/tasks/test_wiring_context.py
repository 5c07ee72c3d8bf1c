"""The context bound to variables, in a real sandboxed kernel: what the host tells is heard before the cell that asks for it."""

import json

import pytest

from nbrl.agent.episode import Episode
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Status, Trajectory, from_table, to_table
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.tasks.rollout.notebooks import SandboxedKernel
from tests.agent.context_lab import TASK, TOKENIZER, Asked, act, settings
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox

UNCHECKED = "import json\nget_ipython().kernel.session.pack = lambda message: json.dumps(message, default=str).encode()\n"
"""A kernel that sends what its own library would not encode."""


def play(lab: Lab, policy: Asked, chosen: AgentSettings) -> Trajectory:
    async def body(kernel: SandboxKernel) -> Trajectory:
        return await Episode(TASK, policy, SandboxedKernel(kernel), Toolbox([]), TOKENIZER, chosen).run()

    played: Trajectory = lab.with_kernel(body, tools={}, prelude=prelude([]))
    return played


def test_a_cell_sees_the_one_before_it_and_changes_the_view(shared_lab: Lab) -> None:
    cells = [
        act("print('first')"),
        act("print(history[0].output, len(history))\nprint(context)"),
        act("1 / 0"),
        act("print(history[-1].output)\ncontext.drop(0)\ncontext.pin(1)"),
        act("context.summarise([1, 2], 'lines')\ncontext.recall(0)\n1 / 0"),
        act("print(context)\nnotepad.add_todo(['a', 'b'])\nnotepad.mark_doing(1)"),
        act("submit_final_answer(history[5].code)"),
    ]
    policy = Asked(cells)
    trajectory = play(shared_lab, policy, settings(context_tokens=5000))
    steps = trajectory.steps
    assert steps[1].observation.startswith("first 1\ncell 0, ")
    assert steps[3].observation == "ZeroDivisionError: division by zero"
    assert ["<output>first</output>" in text for text in policy.texts] == [False, True, True, True, False, True, True]
    assert [line.split(",")[0] for line in steps[5].observation.split("\n")] == [
        "cell 0",
        "cells 1",
        "cell 3",
        "cell 4",
        "this is cell 5",
    ]
    assert "[ ] a\n[~] b" in policy.texts[6]
    assert trajectory.answer == steps[5].code


def test_soft_trimming_keeps_everything_in_reach(shared_lab: Lab) -> None:
    look = act("import json\nprint(json.dumps([cell.output for cell in history]))")
    trajectory = play(shared_lab, Asked([*[act(f"print('cell{i} ' * 15)") for i in range(7)], look]), settings(trim="soft"))
    assert trajectory.status is Status.STEP_LIMIT
    *before, last = [step for step in trajectory.steps if step.kind == "cell"]
    assert len(trajectory.steps) > 8
    assert json.loads(last.observation) == [step.observation for step in before]


@pytest.mark.parametrize(
    "attack",
    [
        "del _nbrl_state, notepad, context, history",
        "_nbrl_state = notepad = context = history = 5",
        "notepad.plan.append(notepad.plan)\nnotepad.draft = float('nan')",
        "notepad.facts = ['\\ud800' * 10**6] * 100",
        "_nbrl_state.requests = [{'do': 'drop', 'cells': [-1, True, 10**30]}] * 10**4",
        "_nbrl_state.requests.append(_nbrl_state.requests)",
        "get_ipython().get_parent = lambda: 1 / 0",
        "get_ipython().user_expressions = lambda e: {'state': {'data': {'application/json': {'requests': [[]], 'answer': 3}}}}",
        "_nbrl_state._repr_json_ = lambda: {'notepad': {}, 'requests': [{'do': 'pin', 'cells': [-5]}]}",
        f"{UNCHECKED}_nbrl_state._repr_json_ = lambda: {{'answer': None, 'notepad': {{'facts': ['\\ud800']}}}}",
        f"{UNCHECKED}get_ipython().user_expressions = lambda e: {{'state': {{'data': {{'application/json': {{'requests': "
        "[{'do': 'summarise', 'cells': [0], 'text': '\\ud800'}]}}}}",
    ],
)
def test_an_attack_on_the_notebook_costs_its_own_agent_only(shared_lab: Lab, attack: str) -> None:
    policy = Asked([act(attack), act("print('goes on')"), act("context.drop(0)"), act("submit_final_answer(1)")])
    trajectory = play(shared_lab, policy, settings(context_tokens=5000, action_tokens=1000, max_steps=4))
    assert not trajectory.steps[0].malformed
    assert trajectory.status in (Status.ANSWERED, Status.STEP_LIMIT)
    assert trajectory.steps[1].observation == "goes on"
    assert from_table(to_table([trajectory])) == [trajectory]
