"""Joins the agent's protocols to the sandbox's kernel. Imports no Ray and no Prefect."""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager

from nbrl.agent.children.children import Children
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.prelude import definitions, prelude, state_expression
from nbrl.agent.tools.awaited import with_awaited
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.exchange import CHANNEL, handlers
from nbrl.agent.tools.files.documents import CONVERT
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.mcp.servers import TrajectoryServers
from nbrl.agent.tools.replay import Replay
from nbrl.agent.tools.sessions import GuardedSession, check_names
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.tools.simulated import SimulatedQuestion
from nbrl.agent.trajectory import Output, Trajectory
from nbrl.infra.process.child import kept
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.jupyter.outputs import KernelOutput as SandboxOutput
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.start.program import confined_program
from nbrl.sandbox.workspace import Workspace

STATE_TIMEOUT_S = 5.0
"""For the state of a cell that failed or was stopped, asked for by itself."""


class Notebooks:
    """Clean kernels that know notepad, context, history and a function for each tool, and the tools behind them."""

    def __init__(self, library: Library, pool: KernelPool) -> None:
        self.library, self._pool = library, pool

    @classmethod
    @asynccontextmanager
    async def open(
        cls, tools: ToolSettings, environments: Mapping[str, Equipment], sandbox: SandboxSettings
    ) -> "AsyncIterator[Notebooks]":
        """Open tools and kernels. Raises AgentError or SandboxError if that fails."""
        library = Library(tools, environments, parser(), kept)
        try:
            await library.open()
            async with KernelPool(sandbox, prelude=prelude(library.common())) as pool:
                yield cls(library, pool)
        finally:
            await library.close()

    @asynccontextmanager
    async def new(
        self,
        environment: str,
        ability: str,
        recorded: Trajectory | None = None,
        asked: SimulatedQuestion | None = None,
        session: GuardedSession | None = None,
        children: Children | None = None,
    ) -> AsyncIterator[tuple[SandboxKernel, Toolbox]]:
        """Yield a kernel with the tools of an ability in an environment, of which `equip` says more; it ends with the context."""
        async with self._pool.kernel() as kernel, aclosing(TrajectoryServers()) as servers:
            toolbox = await equip(kernel, self.library, environment, ability, recorded, asked, session, servers, children)
            try:
                yield kernel, toolbox
            finally:  # what its cells called must not outlive them
                await toolbox.end()

    @asynccontextmanager
    async def bare(
        self,
        environment: str,
        ability: str,
        asked: SimulatedQuestion | None = None,
        session: GuardedSession | None = None,
    ) -> AsyncIterator[tuple[SandboxKernel, Toolbox]]:
        """Yield a kernel that knows no tools, and those that `new` would give it; it ends with the context."""
        async with self._pool.kernel() as kernel, aclosing(TrajectoryServers()) as servers:
            yield kernel, toolbox_of(kernel, self.library, environment, ability, None, asked, session, servers)


class WorkingFolder:
    """The files of a kernel, as an nbrl.agent.children.children.Files."""

    def __init__(self, files: Workspace) -> None:
        self._files = files

    def read(self, path: str) -> bytes:
        try:
            return self._files.read(path)
        except SandboxError as error:
            raise ValueError(str(error)) from error

    def put(self, path: str, data: bytes) -> None:
        try:
            self._files.put(path, data)
        except SandboxError as error:
            raise ValueError(str(error)) from error


def parser() -> tuple[str, ...]:
    """Return the command of the parser of hostile documents, in its own sandbox. Raises SandboxUnavailable without bubblewrap."""
    return confined_program(CONVERT)


async def equip(
    kernel: SandboxKernel,
    library: Library,
    environment: str,
    ability: str,
    recorded: Trajectory | None = None,
    asked: SimulatedQuestion | None = None,
    session: GuardedSession | None = None,
    servers: TrajectoryServers | None = None,
    children: Children | None = None,
) -> Toolbox:
    """Give a clean kernel the tools of an ability in an environment, of the `session` and of its `children`; the prelude has
    defined those that every ability has.

    Raises SandboxError if the tools cannot be defined in the kernel, and as `toolbox_of`.
    """
    toolbox = toolbox_of(kernel, library, environment, ability, recorded, asked, session, servers)
    if children is not None:
        children.files = WorkingFolder(kernel.files)
        toolbox.tools = {tool.name: tool for tool in with_awaited(toolbox.tools.values(), children.tools)}
    kernel.host_calls.uncounted = {CHANNEL}
    kernel.host_calls.tools = handlers(toolbox, str if children is None else children.budget.refusal)
    defined = {tool.name for tool in library.common()}
    if more := [tool for tool in toolbox.tools.values() if tool.name not in defined]:
        execution = await kernel.execute(definitions(more), silent=True)
        if execution.status != "ok":
            raise SandboxError(f"the tools of {ability!r} could not be defined in a new kernel ({execution.status})")
    return toolbox


def toolbox_of(
    kernel: SandboxKernel,
    library: Library,
    environment: str,
    ability: str,
    recorded: Trajectory | None,
    asked: SimulatedQuestion | None,
    session: GuardedSession | None,
    servers: TrajectoryServers | None,
) -> Toolbox:
    """Return the tools of a trajectory, over the files of its kernel.

    A simulated search is about what is `asked`; MCP servers answer as `servers`. With a `recorded` trajectory, its answers are
    served and no service is called. Raises SessionError if a tool of the session has a name that is taken.
    """

    async def read_file(path: str) -> bytes:
        return await asyncio.to_thread(kernel.files.read, path)

    tools = library.tools(environment, ability, read_file, asked, servers)
    stateful = [] if session is None else session.tools
    check_names(environment, [tool.name for tool in tools], stateful)
    tools = [*tools, *stateful]
    if recorded is None:
        return Toolbox(tools, {tool.name for tool in stateful})
    return Replay([recorded], with_awaited(tools) if recorded.children else tools)


class SandboxedKernel:
    """An nbrl.agent.kernel.Kernel over a sandboxed kernel; the agent's state returns with each cell's reply.

    Jupyter evaluates expressions only after a cell that succeeded, so a failed cell costs a second round trip for its state.
    """

    def __init__(self, kernel: SandboxKernel, children: Children | None = None) -> None:
        """Wrap a kernel, the time of whose cells does not run out while `children` run."""
        self._kernel, self._children = kernel, children

    def _paused(self) -> float:
        return 0.0 if self._children is None else self._children.watch.seconds

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        state = {"state": state_expression(message)}
        latest = math.inf if self._children is None else self._children.deadline
        execution = await self._kernel.execute(code, timeout=timeout, expressions=state, paused=self._paused, latest=latest)
        reported = execution.expressions
        if execution.status in ("error", "timeout"):
            second = await self._kernel.execute("", timeout=min(timeout, STATE_TIMEOUT_S), expressions=state, silent=True)
            reported = second.expressions
        outputs = [Output(kind=output.kind, text=_text(output), image=output.image) for output in execution.outputs]
        return CellResult(execution.status, outputs, _state(reported.get("state")))


def _state(reported: object) -> object:
    """Return the state in a reply, or None, since a cell can replace it by anything."""
    match reported:
        case {"data": {"application/json": state}}:
            return state
        case _:
            return None


def _text(output: SandboxOutput) -> str:
    """Return the text of an output. An error is only its last line: the traceback of a cell adds little and costs many tokens."""
    return f"{output.ename}: {output.evalue}" if output.kind == "error" else output.text
