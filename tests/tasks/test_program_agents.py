"""The shipped agents of other packages: each with its real package in the real sandbox, asking a policy of the test."""

import asyncio
from collections.abc import Callable, Iterator, Sequence

import pytest

from nbrl.agent.episode import Task
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.interpreter import CHECKOUT
from nbrl.tasks.rollout.program_episode import limits_for, programs_of
from nbrl.tasks.rollout.samplers import Sampler
from tests.agent.families import FAMILIES, write_folder
from tests.agent.test_recorder import Engine, assert_sampled
from tests.processes import KEY, check_gone, mark, marked

AGENTS = ".venv-agents"
made = pytest.mark.skipif(not (CHECKOUT / AGENTS).exists(), reason="make setup-agents was not run")
pytestmark = [pytest.mark.more, pytest.mark.sandbox, made]
TASK = Task(id="t.0", group="t", sample=0, question="How many lamps?", ability="qa", seed=1)
LAMPS = "lamps.txt"
CODE_END = "</code>"  # where smolagents wants the engine to stop, before the token that closes a turn
GROWN = ["task", "sampled", "observation", "sampled"]  # a conversation whose second request begins with the first and its answer


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder = write_folder(tmp_path_factory.mktemp("family") / "qwen2_5", FAMILIES["qwen2_5"])
    return Conversations.load(ChatTokenizer.load(folder), AgentSettings())


def play(
    conversations: Conversations,
    program: str,
    said: Sequence[str],
    after: Callable[[SandboxKernel], None] = lambda _: None,
    **more: object,
) -> Trajectory:
    """Run a shipped program once by a policy that says these texts. Check what is trained, and that nothing of it is left."""
    command = ["python", f"/opt/program/{program}", f"{KEY}={mark(program)[KEY]}"]
    folder = str(CHECKOUT / "examples" / "programs")
    given = {"kind": "program", "command": command, "folder": folder, "deadline_s": 120, **more}
    settings = AgentSettings.model_validate(given)
    lived: list[int] = []

    def sample(number: int, _: list[int]) -> list[int]:
        lived.extend(marked(program))
        ids = conversations.tokenizer.encode_action(said[number])
        return ids[:-1] if said[number].endswith(CODE_END) else ids

    async def never() -> bool:
        return False

    engine = Engine(sample)

    async def run() -> Trajectory:
        limits = limits_for(settings, SandboxSettings(warm=1, environment=AGENTS))
        async with programs_of(conversations, limits) as programs, KernelPool(limits) as pool, pool.kernel() as kernel:
            kernel.files.put(LAMPS, b"3 lamps\n")
            sampler = Sampler(engine, never, lambda: 0.0)
            trajectory = await programs.play(TASK, sampler, kernel, Toolbox([FunctionTool(add)]), settings)
            after(kernel)
            return trajectory

    trajectory = asyncio.run(run())
    assert lived
    check_gone(program)
    assert_sampled(trajectory, engine)
    return trajectory


def test_a_loop_of_the_package_openai_thinks_until_it_answers(conversations: Conversations) -> None:
    made = play(conversations, "openai_loop.py", ["There are two.", "And a third.\nAnswer: 3"])
    assert (made.status, made.answer, [node.kind for node in made.nodes]) == (Status.ANSWERED, "3", GROWN)


def test_smolagents_computes_with_the_tools_of_the_environment(conversations: Conversations) -> None:
    cells = ["lamps = int(add(a=2, b=3)) + 1\nprint('seen', lamps)", "final_answer(lamps * 7)"]
    made = play(conversations, "code_agent.py", [f"Thought: so.\n<code>\n{cell}\n{CODE_END}" for cell in cells])
    assert (made.status, made.answer, [node.kind for node in made.nodes]) == (Status.ANSWERED, "42", GROWN)
    assert "seen 6" in made.steps[1].observation
    assert [[(call.name, call.ok) for call in step.tool_calls] for step in made.steps] == [[("add", True)], []]


def commands(*lines: str) -> list[str]:
    return [f"THOUGHT: so.\n\n```mswea_bash_command\n{line}\n```" for line in lines]


def test_mini_swe_agent_edits_a_file_and_submits(conversations: Conversations) -> None:
    left = f"env {KEY}={mark('coding_agent.py')[KEY]} sleep 600 >/dev/null 2>&1 &"
    edited: list[bytes] = []
    made = play(
        conversations,
        "coding_agent.py",
        commands(f"sed -i s/3/4/ {LAMPS}; {left}", f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat {LAMPS}"),
        lambda kernel: edited.append(kernel.files.read(LAMPS)),
        answer="file",
    )
    assert (made.status, made.answer, [node.kind for node in made.nodes]) == (Status.ANSWERED, "4 lamps", GROWN)
    assert edited == [b"4 lamps\n"]


def test_mini_swe_agent_ends_with_its_requests(conversations: Conversations) -> None:
    made = play(conversations, "coding_agent.py", commands(f"cat {LAMPS}"), answer="file", max_steps=1)
    assert (made.status, made.answer, len(made.steps)) == (Status.STEP_LIMIT, None, 1)
