"""One question to the agent, outside any run: a model behind an address, a sandboxed kernel, a few tools."""

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernel import Watcher
from nbrl.agent.pictures import picture_kind
from nbrl.agent.policies.recorded import RecordedPolicy
from nbrl.agent.policies.sglang import SglangPolicy
from nbrl.agent.policy import Policy, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import with_files
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import ChatTokenizer, Renderer
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.flows.ask.endpoint import Endpoint, connect
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.workspace import Collected
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.rollout.children import ChildKernels, kernels_at_once
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.rollout.program_episode import OURS, limits_for, programs_of
from nbrl.tasks.rollout.samplers import Sampler

SHOWN = 3  # files left out that are named
STOPPED = "stopped before its end"
AT_ONCE = 4  # agents of each depth that its cells call
MIB = 1024 * 1024
PICTURE_BYTES = 8 * MIB


def check_folder(folder: Path) -> None:
    """Raises ConfigError unless nothing can be overwritten in `folder`, and no link in it can lead elsewhere."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ConfigError(f"--files-to {folder} is no folder; name one that is new or empty")
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(f"--files-to {folder} has files in it; name a folder that is new or empty")
    if not folder.absolute().parent.is_dir():
        raise ConfigError(f"--files-to: there is no folder {folder.absolute().parent}; make it first")


def write_files(folder: Path, collected: Collected, attached: Mapping[str, bytes]) -> str:
    """Write the collected files into an empty folder, but for attached files that were not changed; return a sentence about it.

    Names are relative and without `..`, and every folder on the way is made here. Raises ConfigError when the disk refuses.
    """
    made = [file for file in collected.files if attached.get(file.path) != file.data]
    try:
        folder.mkdir(exist_ok=True)
        for file in made:
            target = folder / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.data)
    except OSError as error:
        raise ConfigError(f"the agent's files cannot be written to {folder}: {error.strerror}") from error
    left_out = "".join(f"; left out: {path} ({reason})" for path, reason in collected.left_out[:SHOWN])
    return f"files of the agent written to {folder}: {len(made)}{left_out}"


@dataclass(frozen=True)
class AgentQuestion:
    """A question with the model, files and tools that answer it.

    `instruction` is added to the system prompt. With a `recorded` trajectory its tools' answers are served again, and without an
    `endpoint` its actions are played too.
    """

    text: str
    endpoint: Endpoint | None
    agent: AgentSettings
    sampling: Sampling
    seed: int
    files: dict[str, bytes]
    tools: ToolSettings
    ability: str
    equipment: Equipment = field(default_factory=Equipment)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    files_to: Path | None = None
    recorded: Trajectory | None = None
    tokenizer: Path | None = None
    instruction: str = ""

    @property
    def task(self) -> str:
        """Return the question as the agent reads it, with the names of its files; a recorded one already contains them."""
        return with_files(self.text, self.files)

    @property
    def pictures(self) -> tuple[bytes, ...]:
        """Return the files that a model which sees gets with the question."""
        return tuple(data for data in self.files.values() if picture_kind(data) and len(data) <= PICTURE_BYTES)

    @property
    def one_kernel(self) -> SandboxSettings:
        """Return the settings of one kernel whose workspace also has space for the files."""
        extra = sum(map(len, self.files.values())) // MIB + 1 if self.files else 0
        more = {
            "warm": 0,
            "max_live": kernels_at_once(self.agent, AT_ONCE if self.agent.children else 1),
            "workspace_mb": self.sandbox.workspace_mb + extra,
        }
        return self.sandbox.model_copy(update=more)


async def answer(
    question: AgentQuestion,
    watcher: Watcher | None,
    keep: Callable[[Trajectory], None],
    report: Callable[[str], None] = lambda _: None,
) -> None:
    """Run the episode and pass its trajectory to `keep`, even the part that exists when it is cancelled.

    `report` is called for each retry of a failed request to the model, and with the place of the agent's files. Raises
    AgentError, SandboxError or ConfigError if the episode cannot begin; what goes wrong during it is a status.
    """
    async with AsyncExitStack() as stack:
        policy, tokenizer = await _policy(stack, question, report)
        limits = limits_for(question.agent, question.one_kernel)
        notebooks = await stack.enter_async_context(Notebooks.open(question.tools, {"": question.equipment}, limits))
        programs, children = None, None
        name = f"agent-{secrets.token_hex(4)}"
        task = Task(
            id=name,
            group=name,
            sample=0,
            question=question.task,
            ability=question.ability,
            seed=question.seed,
            images=question.pictures,
            instruction=question.instruction,
        )
        if question.agent.kind == "program":
            known = tokenizer if isinstance(tokenizer, ChatTokenizer) else None
            conversations = Conversations.load(known, question.agent) if known is not None else None
            programs = await stack.enter_async_context(programs_of(conversations, limits))
            kernel, toolbox = await stack.enter_async_context(notebooks.bare("", question.ability, None, None))
        else:
            if question.recorded is None:
                children = ChildKernels(notebooks, question.agent, AT_ONCE).of(task, policy, tokenizer, question.agent)
            opened = notebooks.new("", question.ability, question.recorded, children=children)
            kernel, toolbox = await stack.enter_async_context(opened)
        await asyncio.to_thread(_put, kernel, question.files)
        wired = SandboxedKernel(kernel, children)
        episode = Episode(task, policy, wired, toolbox, tokenizer, question.agent, watcher, children=children)
        try:
            if programs is None:
                keep(await episode.run())
            else:
                keep(await programs.play(task, _sampler(policy, question.agent), kernel, toolbox, question.agent, None, watcher))
            if question.files_to is not None:
                collected = await asyncio.to_thread(kernel.files.collect)
                collected.files = [each for each in collected.files if not each.path.startswith(OURS)]
                report(write_files(question.files_to, collected, question.files))
        except asyncio.CancelledError:
            keep(episode.trajectory(Status.FAILED, STOPPED))
            raise


def _sampler(policy: Policy, agent: AgentSettings) -> Sampler:
    """Return what a program samples by: the policy, and the engine's parser of calls."""
    calls = None
    if isinstance(policy, SglangPolicy) and agent.tool_parser is not None:
        calls = partial(policy.parse_calls, agent.tool_parser)
    return Sampler(policy, _never, lambda: 0.0, calls)


async def _never() -> bool:
    return False


async def _policy(stack: AsyncExitStack, question: AgentQuestion, report: Callable[[str], None]) -> tuple[Policy, Renderer]:
    """Return the policy that acts, and its renderer."""
    if question.endpoint is not None:
        return await connect(stack, question.endpoint, question.sampling, question.agent, report)
    if question.recorded is None:
        raise ConfigError("no policy: give --endpoint URL, or --replay FILE to play recorded actions")
    folder = question.tokenizer
    tokenizer = EstimatingRenderer() if folder is None else ChatTokenizer.load(folder, question.agent)
    return RecordedPolicy(question.recorded.steps, question.agent, tokenizer), tokenizer


def _put(kernel: SandboxKernel, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        try:
            kernel.files.put(name, data)
        except ValueError as error:
            raise ConfigError(f"{error}; rename the file") from error


def attachments(paths: Sequence[Path]) -> dict[str, bytes]:
    """Return the contents of the files at `paths` by their names in the workspace. Raises ConfigError."""
    files: dict[str, bytes] = {}
    for path in paths:
        if path.name in files:
            raise ConfigError(f"two files are named {path.name}; in the working folder each needs a name of its own")
        if not path.is_file():
            raise ConfigError(f"there is no file {path}; --file names regular files")
        try:
            files[path.name] = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"the file {path} cannot be read: {error.strerror}") from error
    return files
