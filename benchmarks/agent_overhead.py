"""Complete episodes a second with a policy that answers at once: three steps, one tool call each.

Ours runs every episode in a clean sandboxed kernel. Beside it smolagents' CodeAgent plays the same script with its default local
executor, an interpreter of its own in the agent's process without a sandbox: a new agent for each episode, and (`reused`) one
agent for all, whose variables stay. The way of L0 starts a fresh bubblewrap and a stock kernel for every episode. The `python`
tool of inspect-ai (with `--inspect PYTHON`) starts a process without walls for each cell. All take turns in one run. smolagents
is one process, as it is commonly run; `smolagents_per_core_eps` is that times the cores. `ours_host_ms` is the processor
time that an episode of ours costs this process, which is the host of its kernel.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hardware import cpu_machine
from smolagents import CodeAgent, LogLevel, tool
from smolagents.models import ChatMessage, MessageRole, Model
from stock_kernel import stock_kernel

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Status
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.rollout.notebooks import SandboxedKernel, handlers

POLICY = Path(__file__).parent.parent / "infra/policies/tiny"
PASSAGE = "Tilo was born in Keldra."
CELLS = [f"found = search('Tilo born')\nprint({step}, found)" for step in (1, 2)]
LAST = "print(search('Tilo born'))\n"


def act(code: str) -> str:
    return f"<think>I look it up in the corpus</think>\n<code>{code}</code>"


class Ours:
    """Real episodes in real sandboxes, `concurrency` at once."""

    def __init__(self, pool: KernelPool, tools: list[Tool], concurrency: int) -> None:
        self._pool, self._tools, self._concurrency = pool, tools, concurrency
        self._tokenizer = ChatTokenizer.load(POLICY)
        self.host_ms: list[float] = []  # an episode's processor time in this process, in each round

    async def episodes(self, count: int) -> None:
        began = time.process_time()
        gate = asyncio.Semaphore(self._concurrency)

        async def one(number: int) -> None:
            async with gate:
                toolbox = Toolbox(self._tools)
                script = [*map(act, CELLS), act(f"{LAST}submit_final_answer('Keldra')")]
                policy = ScriptedPolicy(script, self._tokenizer)
                task = Task(f"t-{number}", "t", number, "Where was Tilo born?", "qa", number)
                async with self._pool.kernel(handlers(toolbox)) as kernel:
                    wired = SandboxedKernel(kernel)
                    done = await Episode(task, policy, wired, toolbox, self._tokenizer, AgentSettings()).run()
                if (done.status, len(done.steps)) != (Status.ANSWERED, 3) or PASSAGE not in done.steps[0].observation:
                    raise RuntimeError(f"an episode went wrong: {done.status} {done.failure}")

        await asyncio.gather(*(one(number) for number in range(count)))
        await self._pool.settle()
        self.host_ms.append((time.process_time() - began) * 1000 / count)


class Script(Model):
    """The same actions in smolagents' words."""

    def __init__(self) -> None:
        super().__init__(model_id="script")
        self._step = 0

    def generate(self, messages: object, *_: object, **__: object) -> ChatMessage:
        code = [*CELLS, f"{LAST}final_answer('Keldra')"][self._step % 3]
        self._step += 1
        text = f"I look it up in the corpus\n<code>\n{code}\n</code>"
        return ChatMessage(role=MessageRole.ASSISTANT, content=text)


class Smolagents:
    """A new agent an episode, as clean as a new kernel; or one agent for all, whose interpreter keeps its variables."""

    def __init__(self, index: SearchTool, *, reused: bool) -> None:
        loop = asyncio.new_event_loop()

        @tool
        def search(query: str) -> str:
            """Looks up the corpus.

            Args:
                query: what to look for
            """
            return str(loop.run_until_complete(index.call({"query": query})))

        self._search = search
        self._agent = self._new() if reused else None

    def _new(self) -> CodeAgent:
        return CodeAgent(tools=[self._search], model=Script(), verbosity_level=LogLevel.OFF)

    async def episodes(self, count: int) -> None:
        def work() -> None:
            for _ in range(count):
                agent = self._agent or self._new()
                answer = agent.run("Where was Tilo born?")
                if answer != "Keldra" or len(agent.memory.steps) != 4:
                    raise RuntimeError(f"smolagents answered {answer!r} in {len(agent.memory.steps)} steps")

        await asyncio.to_thread(work)


async def l0_way(count: int) -> None:
    """A fresh kernel in a fresh bubblewrap an episode; the tool is a function inside, which costs it nothing."""
    for _ in range(count):
        async with stock_kernel() as client:
            cells = [f"def search(query): return {PASSAGE!r}\n{CELLS[0]}", CELLS[1], LAST]
            for cell in cells:
                said: list[object] = []
                await client.execute_interactive(cell, output_hook=said.append)
                if PASSAGE not in str(said):
                    raise RuntimeError(f"the stock kernel answered {said}")


class Inspect:
    """inspect-ai in an environment of its own; its start is not counted. Its cells are run by the system's python3."""

    def __init__(self, python: str, concurrency: int) -> None:
        self._command = [python, str(Path(__file__).with_name("inspect_episodes.py"))]
        self._concurrency = concurrency

    def rate(self, count: int) -> float:
        command = [*self._command, str(count), str(self._concurrency)]
        # Each cell is a login shell's: what this user's shell reads at its start is not inspect-ai's cost.
        with tempfile.TemporaryDirectory() as home:
            bare = {"HOME": home, "PATH": "/usr/bin:/bin"}
            return float(subprocess.run(command, env=bare, check=True, stdout=subprocess.PIPE, text=True).stdout)


async def rate(work: Callable[[int], Awaitable[None]], count: int) -> float:
    began = time.perf_counter()
    await work(count)
    return count / (time.perf_counter() - began)


async def measure(rounds: int, episodes: int, concurrency: int, python: str | None) -> dict[str, object]:
    index = SearchTool(Corpus.in_memory([PASSAGE, "Keldra lies on the Vorn."]))
    settings = SandboxSettings(warm=concurrency, max_live=2 * concurrency)
    async with KernelPool(settings, prelude=prelude([index])) as pool:
        ours = Ours(pool, [index], concurrency)
        fresh, reused = Smolagents(index, reused=False), Smolagents(index, reused=True)
        ways = {
            "ours": (ours.episodes, episodes),
            "smolagents": (fresh.episodes, episodes),
            "smolagents_reused": (reused.episodes, episodes),
            "l0_way": (l0_way, 3),
        }
        inspect = Inspect(python, concurrency) if python else None
        found: dict[str, list[float]] = {name: [] for name in (*ways, "inspect")}
        for work, _ in ways.values():
            await work(2)
        for _ in range(rounds):
            for name, (work, count) in ways.items():
                found[name].append(await rate(work, count))
            if inspect:
                found["inspect"].append(inspect.rate(episodes))
    middle = {name: statistics.median(rates) for name, rates in found.items() if rates}
    beside = (
        {"inspect_eps": round(middle["inspect"], 2), "vs_inspect": round(middle["ours"] / middle["inspect"], 1)}
        if inspect
        else {}
    )
    return {
        "ours_eps": round(middle["ours"], 2),
        "ours_host_ms": round(statistics.median(ours.host_ms[1:]), 2),
        "smolagents_eps": round(middle["smolagents"], 2),
        "smolagents_per_core_eps": round(middle["smolagents"] * (os.cpu_count() or 1), 2),
        "smolagents_reused_eps": round(middle["smolagents_reused"], 2),
        "l0_way_eps": round(middle["l0_way"], 2),
        "vs_smolagents": round(middle["ours"] / middle["smolagents"], 2),
        "vs_smolagents_reused": round(middle["ours"] / middle["smolagents_reused"], 2),
        "vs_l0_way": round(middle["ours"] / middle["l0_way"], 1),
        **beside,
        "rounds": rounds,
        "episodes": episodes,
        "concurrency": concurrency,
        "cores": os.cpu_count() or 1,
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--episodes", type=int, default=60, help="of each way but L0's in each round")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--inspect", metavar="PYTHON", help="an interpreter that has inspect-ai 0.3.285")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.rounds, given.episodes, given.concurrency, given.inspect))))


if __name__ == "__main__":
    main()
