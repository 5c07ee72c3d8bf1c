import asyncio
from collections.abc import Sequence

import pytest

from nbrl.agent.context.notepad import State, read_state
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import cut_middle
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Status, Trajectory, from_table, to_table
from tests.flows.model_server import act
from tests.tokenizer import byte_tokenizer

TASK = Task(id="q-0", group="q", sample=0, question="Where was Tilo born?", ability="one_hop", seed=1)
TOKENIZER = byte_tokenizer()
SEARCH: list[Tool] = [SearchTool(Corpus.in_memory(["Tilo was born in Keldra.", "Keldra lies on the Vorn."]))]


def play(actions: Sequence[str], settings: AgentSettings | None = None, policy: Policy | None = None) -> Trajectory:
    async def run() -> Trajectory:
        toolbox = Toolbox(SEARCH)
        kernel = InlineKernel(prelude(SEARCH), toolbox.call)
        script = policy or ScriptedPolicy(lambda step: actions[min(step, len(actions) - 1)], TOKENIZER)
        return await Episode(TASK, script, kernel, toolbox, TOKENIZER, settings or AgentSettings()).run()

    return asyncio.run(run())


def text(trajectory: Trajectory, kind: str, step: int) -> str:
    node = next(n for n in trajectory.nodes if n.kind == kind and n.step == step)
    return TOKENIZER.decode(node.token_ids)


def test_an_answer_ends_the_trajectory() -> None:
    trajectory = play([act("print(search('Tilo born'))"), act("submit_final_answer('Keldra')")])
    assert (trajectory.status, trajectory.answer, len(trajectory.steps)) == (Status.ANSWERED, "Keldra", 2)
    assert trajectory.steps[0].observation == "Tilo was born in Keldra."
    call = trajectory.steps[0].tool_calls[0]
    assert (call.name, call.arguments, call.ok) == ("search", '{"query": "Tilo born"}', True)


class Refusing:
    """Plays cells until it refuses a prompt."""

    def __init__(self, taken: int) -> None:
        self._script, self._left = ScriptedPolicy([act("1")], TOKENIZER), taken

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        self._left -= 1
        if self._left < 0:
            raise RefusedError("the server answered 400")
        return await self._script.generate(prompt, max_tokens, seed)


@pytest.mark.parametrize(("taken", "status"), [(0, Status.FAILED), (1, Status.TOKEN_LIMIT), (2, Status.TOKEN_LIMIT)])
def test_a_prompt_that_is_refused_is_a_fault_only_before_the_trajectory_added_to_it(taken: int, status: Status) -> None:
    trajectory = play([], policy=Refusing(taken))
    assert (trajectory.status, trajectory.failure, len(trajectory.steps)) == (status, "the server answered 400", taken)


def test_state_persists_from_cell_to_cell() -> None:
    trajectory = play([act("x = 20"), act("x += 1"), act("submit_final_answer(x * 2)")])
    assert trajectory.answer == "42"


def test_a_malformed_action_costs_a_step_and_is_told() -> None:
    trajectory = play(["no tags at all", act("submit_final_answer(1)")])
    assert trajectory.steps[0].cell_status == "none"
    assert "there is no <think> block" in text(trajectory, "observation", 0)
    assert trajectory.status is Status.ANSWERED


def test_steps_run_out() -> None:
    trajectory = play([act("pass")], AgentSettings(max_steps=3))
    assert (trajectory.status, trajectory.answer, len(trajectory.steps)) == (Status.STEP_LIMIT, None, 3)


def test_a_cell_that_fails_is_an_observation() -> None:
    trajectory = play([act("1 / 0"), act("submit_final_answer(1)")])
    assert trajectory.steps[0].cell_status == "error"
    assert "ZeroDivisionError" in trajectory.steps[0].observation


def test_the_tail_stands_last_and_shows_notepad_and_budget() -> None:
    trajectory = play(
        [act("notepad.add_facts('Tilo: Keldra')"), act("submit_final_answer('Keldra')")], AgentSettings(max_steps=5)
    )
    tail = text(trajectory, "tail", 1)
    assert "- Tilo: Keldra" in tail
    assert "steps 4" in tail
    sampled = next(i for i, n in enumerate(trajectory.nodes) if n.kind == "sampled" and n.step == 1)
    assert trajectory.nodes[trajectory.nodes[sampled].parent].kind == "tail"
    assert text(trajectory, "tail", 0) not in TOKENIZER.decode(trajectory.path(sampled))


def test_hard_trimming_keeps_task_notepad_and_last_step_within_the_limit() -> None:
    settings = AgentSettings(max_steps=6, context_tokens=700, action_tokens=120, system_prompt="s", observation_chars=100)
    trajectory = play([act("notepad.add_facts('kept')\nprint('word ' * 15)")], settings)
    assert trajectory.status is Status.STEP_LIMIT
    for index, node in enumerate(trajectory.nodes):
        if node.kind == "sampled":
            assert len(trajectory.path(index)) <= settings.context_tokens
    last = max(i for i, n in enumerate(trajectory.nodes) if n.kind == "sampled")
    seen = TOKENIZER.decode(trajectory.path(last))
    assert TASK.question in seen
    assert "- kept" in seen
    assert seen.count("<output>") == 1


def test_without_trimming_the_token_limit_ends_the_trajectory() -> None:
    settings = AgentSettings(max_steps=6, context_tokens=700, action_tokens=120, system_prompt="s", trim="none")
    assert play([act("print('word ' * 15)")], settings).status is Status.TOKEN_LIMIT


def test_sampled_ids_are_stored_as_they_came() -> None:
    odd = [*TOKENIZER.encode_action(act("submit_final_answer(1)"))]

    class Odd:
        async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
            return Generation(odd, [-0.5] * len(odd), "7", "stop")

    trajectory = play([], policy=Odd())
    assert trajectory.sampled()[0].token_ids == odd
    assert trajectory.sampled()[0].weights_version == "7"


def test_an_action_cut_by_its_limit_is_malformed() -> None:
    trajectory = play([act("x = '" + "a" * 200 + "'")], AgentSettings(max_steps=1, action_tokens=50))
    assert "longer than 50 tokens" in trajectory.steps[0].malformed


def test_a_dead_engine_is_a_failed_trajectory_not_an_exception() -> None:
    class Dead:
        async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
            raise PolicyError("the engine is gone")

    trajectory = play([], policy=Dead())
    assert (trajectory.status, trajectory.failure) == (Status.FAILED, "the engine is gone")


def test_a_dead_kernel_ends_without_an_answer() -> None:
    class DeadKernel:
        async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
            return CellResult("dead")

    async def run() -> Trajectory:
        script = ScriptedPolicy(lambda step: act("import os; os._exit(1)"), TOKENIZER)
        return await Episode(TASK, script, DeadKernel(), Toolbox([]), TOKENIZER, AgentSettings()).run()

    trajectory = asyncio.run(run())
    assert (trajectory.status, len(trajectory.steps)) == (Status.NO_ANSWER, 1)


def test_the_deadline_ends_and_the_trajectory_is_kept() -> None:
    trajectory = play([act("import time; time.sleep(0.2)")], AgentSettings(deadline_s=0.3, max_steps=50))
    assert trajectory.status is Status.TIMEOUT
    assert trajectory.steps


def test_trajectories_survive_parquet_schema() -> None:
    trajectory = play([act("print(search('Tilo'))"), act("submit_final_answer('Keldra')")])
    assert from_table(to_table([trajectory])) == [trajectory]


@pytest.mark.parametrize(
    "reported",
    [
        None,
        3,
        [],
        {"answer": 5},
        {"notepad": {"plan": "x"}},
        {"notepad": {"facts": [1]}},
        {"surprise": 1},
        {"answer": "a", "notepad": 0},
    ],
)
def test_a_forged_state_is_ignored(reported: object) -> None:
    before = State(answer=None)
    assert read_state(reported, before) is before


def test_a_huge_notepad_is_capped() -> None:
    state = read_state({"answer": None, "notepad": {"plan": [], "facts": ["x" * 10**6] * 10**4, "draft": "d" * 10**6}}, State())
    assert 28_000 < len(state.notepad.render()) < 34_000


@pytest.mark.parametrize(
    "reported",
    [
        {"answer": "a\ud800"},
        {"notepad": {"plan": [{"text": "\ud800", "state": "done"}], "facts": ["\udcff"], "draft": "\udfff"}},
    ],
)
def test_a_forged_text_that_nothing_can_store_is_replaced(reported: object) -> None:
    state = read_state(reported, State())
    assert "?" in state.model_dump_json()
    assert state.notepad.render().encode() or state.answer == "a?"


def test_the_middle_is_cut() -> None:
    cut = cut_middle("head" + "x" * 100 + "tail", 20)
    assert cut.startswith("head")
    assert cut.endswith("tail")
    assert "88 characters cut" in cut
