"""A trajectory whose agent is a program of its own: it runs in the sandbox and asks the policy by the chat API."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbrl.agent.episode import Task
from nbrl.agent.errors import AgentError
from nbrl.agent.kernel import Watcher
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.recorder.server import RecordingServer
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import storable
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.sessions import GuardedSession
from nbrl.agent.trajectory import ProducedFile, Status, Step, Trajectory
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import KernelLimits, SandboxSettings
from nbrl.tasks.rollout.samplers import Sampler

OURS = ".nbrl."  # how files in the working folder begin that are not the program's
SOCKET, STDIN, STDOUT, STDERR = f"{OURS}socket", f"{OURS}stdin", f"{OURS}stdout", f"{OURS}stderr"
QUESTION, ANSWER = "question.txt", "answer.txt"
KEPT_CHARS = 100_000  # of the output
SHOWN_CHARS = 300


@dataclass
class ReadTokens:
    """Tokens of all trees of programs, and those of them that were read `again`: see Recorder."""

    trajectories: int = 0
    tokens: int = 0
    again: int = 0
    said: bool = False

    def add(self, recorder: Recorder) -> None:
        """Count a trajectory."""
        self.trajectories += 1
        self.tokens += sum(len(node.token_ids) for node in recorder.nodes)
        self.again += recorder.again

    def price(self) -> str:
        """Return, once, what was read again in one sentence; empty if nothing was."""
        if self.said or not self.again:
            return ""
        self.said = True
        return (
            f"agent.command: earlier turns came back otherwise than they were, by the model's chat template or the program, so "
            f"{self.again:,} of {self.tokens:,} tokens ({self.again / self.tokens:.0%}) of the first {self.trajectories} "
            "trajectories were read once more, in branches that are trained as well"
        )


@dataclass(frozen=True)
class Programs:
    """Runs the program of the settings, a trajectory each time it is played."""

    conversations: Conversations
    server: RecordingServer
    sandbox: SandboxSettings
    reading: ReadTokens = field(default_factory=ReadTokens)

    async def play(
        self,
        task: Task,
        sampler: Sampler,
        kernel: SandboxKernel,
        toolbox: Toolbox,
        settings: AgentSettings,
        session: GuardedSession | None = None,
        watcher: Watcher | None = None,
    ) -> Trajectory:
        """Run the program to its end in a clean kernel with TCP. Raises AgentError for an infrastructure fault, SandboxError."""
        began, clock = time.time(), time.monotonic()

        def replied(steps: list[Step]) -> None:
            take_calls(toolbox, steps[:-1])
            if watcher is not None:
                watcher.acted(len(steps) - 1, steps[-1])
            if session is not None:
                session.set_step(len(steps) - 1)

        recorder = Recorder(self.conversations, sampler.policy, settings, task.seed, sampler.calls, replied)
        limits = KernelLimits.of(self.sandbox)
        tools = ToolServer(toolbox, limits.call_timeout_s, limits.calls_per_kernel, limits.call_bytes)
        question = "\n\n".join(part for part in (task.question, task.instruction) if part)
        await asyncio.to_thread(self._hand_over, kernel, question, settings)
        listener = await asyncio.to_thread(kernel.files.listen, SOCKET)
        async with self.server.listening(listener):
            with self.server.recording(recorder, tools) as path:
                cell = await kernel.execute(_cell(path, question, settings), timeout=settings.deadline_s)
            await toolbox.end()
        take_calls(toolbox, recorder.steps)
        self.reading.add(recorder)
        if fault := recorder.fault or toolbox.fault:
            raise fault
        said, complained = await asyncio.to_thread(lambda: [_read(kernel, name) for name in (STDOUT, STDERR)])
        if not recorder.steps:
            ended = "did not end in time" if cell.status == "timeout" else "ended"
            failed = [output.evalue for output in cell.outputs if output.kind == "error"]  # of what starts it
            last = " ".join((complained or said or " ".join(failed)).split())[-SHOWN_CHARS:] or "it said nothing"
            raise AgentError(f"agent.command {ended} without a request to the model: {last}")
        answer = recorder.answer
        if settings.answer != "call":
            answer = said if settings.answer == "stdout" else await asyncio.to_thread(_read, kernel, ANSWER)
        answer = (answer or "").strip() or None
        status = Status.ANSWERED if answer is not None else Status.NO_ANSWER
        if answer is None and session is not None and session.done:
            status = Status.DONE
        elif cell.status == "timeout":
            status = Status.TIMEOUT
        elif recorder.spent and answer is None:
            status = Status.STEP_LIMIT
        seconds = time.monotonic() - clock
        made = task.ended(status, "", answer, recorder.nodes, recorder.steps, began, seconds)
        outputs = (("stdout", said), ("stderr", complained))
        made.files = [ProducedFile(path=name, data=text[-KEPT_CHARS:].encode()) for name, text in outputs if text]
        return made

    def _hand_over(self, kernel: SandboxKernel, question: str, settings: AgentSettings) -> None:
        kernel.files.put(STDIN, question.encode() if settings.reads == "stdin" else b"")
        if settings.reads == "file":
            kernel.files.put(QUESTION, question.encode())


@asynccontextmanager
async def programs_of(conversations: Conversations | None, sandbox: SandboxSettings) -> AsyncIterator[Programs]:
    """Serve programs until the end of the body. Raises AgentError where the model's token ids are not known."""
    if conversations is None:
        raise AgentError("an agent of the kind program needs a model of our own engines: its token ids are recorded")
    with rendering():
        async with RecordingServer().running() as server:
            yield Programs(conversations, server, sandbox)


def limits_for(agent: AgentSettings, sandbox: SandboxSettings) -> SandboxSettings:
    """Return the limits of kernels: with TCP and the program's folder where programs are the agents. Raises AgentError."""
    if agent.kind != "program":
        return sandbox
    folder = None if agent.folder is None else _readable(Path(agent.folder).absolute())
    return KernelLimits.of(sandbox).model_copy(update={"loopback": True, "program": folder})


def _readable(folder: Path) -> str:
    """Return a folder that programs can read. Raises AgentError."""
    if not folder.is_dir():
        raise AgentError(f"agent.folder {folder} is no folder of this machine; bring the program there")
    if os.geteuid() == 0 and folder.stat().st_mode & 0o5 != 0o5:
        raise AgentError(f"agent.folder {folder} cannot be read by programs, which have no rights of root; chmod -R o+rX it")
    return str(folder)


def _cell(path: str, question: str, settings: AgentSettings) -> str:
    """Return the code by which a kernel runs the program."""
    address = f"http://127.0.0.1:{{port}}{path}"
    variables = {
        "OPENAI_BASE_URL": f"{address}/v1",
        "OPENAI_API_BASE": f"{address}/v1",
        "OPENAI_API_KEY": "none",
        "OPENAI_MODEL": "policy",
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": "policy",
        "NBRL_ADDRESS": address,
        "NBRL_MCP": f"{address}/mcp",
    }
    command = [*settings.command, *([question] if settings.reads == "argument" else [])]
    spec = {
        "command": command,
        "variables": variables,
        "socket": SOCKET,
        "stdin": STDIN,
        "stdout": STDOUT,
        "stderr": STDERR,
    }
    return f"from nbrl.sandbox.inside.relay import run\nrun({spec!r})"


def take_calls(toolbox: Toolbox, steps: Sequence[Step]) -> None:
    """Add the calls since the last time to the last of the steps; those before the first request wait for the first."""
    if steps:
        steps[-1].tool_calls += toolbox.take_calls()
        steps[-1].unrecorded_calls += toolbox.take_unrecorded()


def _read(kernel: SandboxKernel, name: str) -> str:
    """Return the text of a file of the program; empty where there is none that can be read."""
    with suppress(SandboxError):
        return storable(kernel.files.read(name).decode(errors="replace"))
    return ""
