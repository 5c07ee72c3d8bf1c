"""What the notebook of a trajectory gives back of it, and what is played again."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import PolicyError, RecordingError
from nbrl.agent.grammar import Action, Grammar
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.notebook.recording import as_json, changed, read
from nbrl.agent.notebook.write import notebook, written
from nbrl.agent.observation import observe
from nbrl.agent.policies.recorded import RecordedPolicy, ScriptedPolicy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import UNKNOWN, ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Node, Output, Status, Step, ToolCall, Trajectory

PRINTABLE = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)
JSON = st.recursive(st.none() | st.booleans() | st.integers() | PRINTABLE, lambda inner: st.lists(inner, max_size=3))
CALLS = st.builds(
    lambda name, arguments, result, ok: ToolCall(
        name=name, arguments=json.dumps(arguments), result=json.dumps(result), ok=ok, seconds=0.5
    ),
    PRINTABLE,
    st.dictionaries(PRINTABLE, JSON, max_size=3),
    JSON | st.just("x" * 300_000),
    st.booleans(),
)
OUTPUTS = st.builds(Output, kind=st.sampled_from(["stream", "result", "display", "error"]), text=PRINTABLE)
CELLS = st.builds(
    Step,
    think=PRINTABLE,
    code=PRINTABLE,
    cell_status=st.sampled_from(["ok", "error", "timeout", "dead"]),
    outputs=st.lists(OUTPUTS, max_size=3),
    tool_calls=st.lists(CALLS, max_size=2),
)
OTHERS = st.builds(Step, kind=st.just("summary"), think=PRINTABLE, observation=PRINTABLE) | st.builds(
    Step, think=PRINTABLE, malformed=PRINTABLE.filter(bool), observation=PRINTABLE
)


def trajectory(*steps: Step) -> Trajectory:
    known = {"group": "q", "sample": 0, "question": "?", "ability": "qa", "answer": "1", "nodes": []}
    return Trajectory.model_validate({"id": "q-0", "status": Status.ANSWERED, "steps": list(steps), **known})


@given(st.lists(CELLS | OTHERS, max_size=4), st.binary())
def test_json_gives_back_all_but_the_token_ids_that_are_unknown(steps: list[Step], image: bytes) -> None:
    made = trajectory(*steps, Step(outputs=[Output(kind="display", text="", image=image)]))
    known = Node(parent=-1, kind="system", step=0, token_ids=[1, 2])
    unknown = Node(parent=0, kind="sampled", step=0, token_ids=[UNKNOWN] * 2, logprobs=[0.0] * 2, weights_version="m")
    made.nodes = [known, unknown]
    found = read(as_json(made).encode())
    assert found.nodes == [known, Node(parent=0, kind="sampled", step=0, weights_version="m")]
    assert found.steps == made.steps


@given(st.lists(CELLS | OTHERS, max_size=4))
def test_a_notebook_gives_back_the_trajectory_it_was_made_of(steps: list[Step]) -> None:
    for step in steps:
        if step.kind == "cell" and not step.malformed and step.cell_status != "none":
            step.observation = observe(CellResult(step.cell_status, step.outputs))
    made = trajectory(*steps)
    assert read(written(notebook(made, {"total": 1.0, "step_rewards": [0.5] * len(steps)}))) == made
    assert read(made.model_dump_json().encode()) == made


WORDS = st.text(st.sampled_from("ab \n'("), min_size=1, max_size=30).map(str.strip).filter(bool)
GRAMMARS = [Grammar(thinking, "think", style) for thinking in ("tag", "native") for style in ("tag", "fence")]  # type: ignore[arg-type]


@given(st.sampled_from(GRAMMARS), WORDS, WORDS)
def test_an_action_is_written_as_it_is_parsed(grammar: Grammar, think: str, code: str) -> None:
    assert grammar.parse(grammar.write(think, code)) == Action(think, code)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"3",
        b"[]",
        b"{}",
        b"{" * 9_999,
        b'{"cells": 3}',
        b'{"cells": [], "metadata": {}, "nbformat": 4}',
        b'{"cells": [], "metadata": {"nbrl": {}}, "nbformat": 4, "nbformat_minor": 5}',
    ],
)
def test_what_is_no_recording_is_one_error(data: bytes) -> None:
    with pytest.raises(RecordingError, match="neither a notebook that nbrl saved nor a trajectory as JSON"):
        read(data)


@pytest.mark.parametrize(("arguments", "result"), [("[1]", "1"), ("{", "1"), ("{}", "{")])
def test_a_call_whose_record_was_edited_into_something_else_is_refused(arguments: str, result: str) -> None:
    call = ToolCall(name="look", arguments=arguments, result=result, ok=True, seconds=0.1)
    with pytest.raises(RecordingError):
        read(trajectory(Step(tool_calls=[call])).model_dump_json().encode())


def test_halves_of_surrogate_pairs_do_not_reach_a_kernel() -> None:
    assert read(json.dumps(trajectory(Step(code="x = '\ud800'")).model_dump()).encode()).steps[0].code == "x = '?'"


SOFT = AgentSettings(
    trim="soft",
    context_tokens=900,
    action_tokens=120,
    summary_tokens=60,
    max_steps=6,
    observation_chars=600,
    system_prompt="{form}",
)
SCRIPT = [
    "<think>a</think>\n<code>print('x' * 300)</code>",
    "<think>b</think>\n<code>print('y' * 300)</code>",
    "no tags",
    "<think>" + "long " * 200,
    "<think>sum up</think>x and y were seen",
    "<think>c</think>\n<code>print(len(history), history[1].output[0])</code>",
    "<think>d</think>\n<code>submit_final_answer('done')</code>",
]


def test_a_trajectory_with_summaries_and_malformed_actions_is_played_again() -> None:
    tokenizer = ChatTokenizer.load("infra/policies/tiny")

    async def play(policy: ScriptedPolicy | RecordedPolicy) -> Trajectory:
        toolbox = Toolbox([])
        task = Task("q-0", "q", 0, "What?", "qa", 0)
        return await Episode(task, policy, InlineKernel(prelude([]), toolbox.call), toolbox, tokenizer, SOFT).run()

    async def both() -> tuple[Trajectory, Trajectory]:
        first = await play(ScriptedPolicy(SCRIPT, tokenizer))
        return first, await play(RecordedPolicy(first.steps, SOFT, tokenizer))

    first, again = asyncio.run(both())
    assert [step.kind for step in first.steps].count("summary") >= 1
    assert [bool(step.malformed) for step in first.steps] == [False, False, True, True, False, False, False]
    assert first.answer == again.answer == "done"
    assert [(s.kind, s.think, s.code, s.malformed, s.observation) for s in again.steps] == [
        (s.kind, s.think, s.code, s.malformed, s.observation) for s in first.steps
    ]
    assert changed(first, again) == []
    again.steps[1].observation = "else"
    del again.steps[-1]
    assert changed(first, again) == [1, len(first.steps) - 1]


def test_a_recording_that_is_over_says_so_and_summaries_stand_where_they_are_asked_for() -> None:
    steps = [Step(kind="summary", observation="so far"), Step(think="a", code="1")]
    policy = RecordedPolicy(steps, AgentSettings(), EstimatingRenderer())
    ask = Prompt([], [Message("user", "<budget></budget>")])
    summary = Prompt([], [Message("user", f"<budget></budget>\n{AgentSettings().render_summary_prompt()}")])

    async def work() -> list[str | None]:
        return [(await policy.generate(prompt, 100, 0)).text for prompt in (ask, summary)]

    assert asyncio.run(work()) == ["<think>a</think><code>1</code>", ""]
    with pytest.raises(PolicyError, match="no further action"):
        asyncio.run(policy.generate(ask, 100, 0))
