"""What does a session cost? The same 20 calls by a session of a world, by a tool without memory, and by OpenEnv's own client.

Usage: python benchmarks/worlds.py [--episodes 64] [--rounds 5] [--openenv PYTHON]

Episodes are played by a real runner's parts, a kernel each, with a written cell that makes 20 calls; the policy is a script. Ways
take turns in one process, `rounds` times each. `session_over_plain` is the ratio of the processor time of all processes, at most
1.15. With `--openenv` the Python of an environment that has openenv, its own client makes 20 steps of its own echo
server on loopback for each episode, without any kernel or model: what its loop alone takes.

One JSON line for each way, with medians over the rounds; the last one has the ratios.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hardware import cpu_machine

from nbrl.agent.episode import Episode, Task
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.functions import tool
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.tools.settings import ToolSettings
from nbrl.infra.process.child import free_port, port_in_use
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.environments.own_world import WorldSource, reference_of
from nbrl.tasks.environments.worlds.rooms import Rooms
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.rollout.sessions import SessionPool
from nbrl.tasks.runs.recipes import load

CALLS, AT_ONCE, LIMIT = 20, 16, 1.15
CELL = "for _ in range(20):\n    said = look()\nprint(said)"
QUESTION = "Put the lamp into the cellar."
ECHO = """
import asyncio, json, sys, time
from openenv.core import GenericEnvClient


async def main(url, episodes, calls):
    started = time.perf_counter(), time.process_time()
    for _ in range(episodes):
        async with GenericEnvClient(base_url=url) as client:
            await client.reset()
            for _ in range(calls):
                await client.step({"message": "hall"})
    print(json.dumps([time.perf_counter() - started[0], time.process_time() - started[1]]))


asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
"""


@tool
def look() -> str:
    """Say where you are and what lies there."""
    return "You are in the hall. Here: nothing."


def processor_s() -> float:
    """Return the processor time of this process and of its children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


async def played(notebooks: Notebooks, pool: SessionPool, asked: Asked | None, episodes: int) -> None:
    config = load("tiny-cpu")
    agent = AgentSettings(max_steps=2, context_tokens=4000, action_tokens=400)
    tokenizer = ChatTokenizer.load(config.policy.path, agent)
    actions = [f"<think>I look around</think><code>{code}</code>" for code in (CELL, "submit_final_answer('hall')")]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with gate, pool.session(asked, number) as session, notebooks.new("e", "", session=session) as (kernel, toolbox):
            task = Task(f"t{number}", "t", number, QUESTION, "fetch", number, "e")
            policy = ScriptedPolicy(actions, tokenizer)
            done = await Episode(task, policy, SandboxedKernel(kernel), toolbox, tokenizer, agent, session=session).run()
            if (done.status, len(done.steps[0].tool_calls)) != ("answered", CALLS):
                raise RuntimeError(f"an episode went wrong: {done.status} {done.failure} {done.steps[0].observation}")

    await asyncio.gather(*map(one, range(episodes)))


async def measured(work: Callable[[], Awaitable[None]]) -> tuple[float, float]:
    """Return seconds and processor seconds."""
    clock, used = time.perf_counter(), processor_s()
    await work()
    return time.perf_counter() - clock, processor_s() - used


async def nbrl(episodes: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    world = Rooms(train=1, held_out=1)
    (question,) = world.questions("train")
    asked = Asked("q", QUESTION, "fetch", "e", reference_of(question))
    settings = {"train": 1, "held_out": 1}
    pool = SessionPool({"e": WorldSource("nbrl.tasks.environments.worlds.rooms:Rooms", settings)}, 30.0)
    sandbox = SandboxSettings(warm=AT_ONCE, max_live=2 * AT_ONCE)
    plain = ToolSettings(default=("look",), own={"look": "worlds:look"})
    found: dict[str, list[tuple[float, float]]] = {"session": [], "plain": []}
    for _ in range(rounds):
        for way, tools, question_of in (("plain", plain, None), ("session", ToolSettings(), asked)):
            # Kernels count as children once they have ended, so each way has kernels of its own.
            async def work(tools: ToolSettings = tools, asked: Asked | None = question_of) -> None:
                async with Notebooks.open(tools, {"e": Equipment()}, sandbox) as notebooks:
                    await played(notebooks, pool, asked, episodes)

            found[way].append(await measured(work))
    await pool.close()
    return found


def openenv(python: str, episodes: int, rounds: int) -> list[tuple[float, float]]:
    """Return seconds and the client's processor seconds of OpenEnv's own loop against the echo environment that it writes."""
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        init = [str(Path(python).with_name("openenv")), "init", "echo_test", "--output-dir", folder]
        subprocess.run(init, check=True, capture_output=True)
        served = [python, "-m", "uvicorn", "server.app:app", "--host", "127.0.0.1", "--port", port, "--log-level", "error"]
        with subprocess.Popen(served, cwd=Path(folder, "echo_test")) as server:
            try:
                while not port_in_use(int(port)):
                    time.sleep(0.1)
                return [_echoed(python, port, episodes) for _ in range(rounds)]
            finally:
                server.terminate()


def _echoed(python: str, port: str, episodes: int) -> tuple[float, float]:
    command = [python, "-c", ECHO, f"http://127.0.0.1:{port}", str(episodes), str(CALLS)]
    seconds, used = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return seconds, used


def line(way: str, episodes: int, found: list[tuple[float, float]]) -> dict[str, Any]:
    seconds, used = [statistics.median(each) for each in zip(*found, strict=True)]
    return {
        "way": way,
        "episodes_per_s": round(episodes / seconds, 2),
        "processor_ms_per_episode": round(1000 * used / episodes, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openenv", help="Python of an environment with openenv and its echo environment")
    given = parser.parse_args()
    found = asyncio.run(nbrl(given.episodes, given.rounds))
    if given.openenv:
        found["openenv"] = openenv(given.openenv, given.episodes, given.rounds)
    lines = {way: line(way, given.episodes, rounds) for way, rounds in found.items()}
    for each in lines.values():
        print(json.dumps(each))
    ratio = lines["session"]["processor_ms_per_episode"] / lines["plain"]["processor_ms_per_episode"]
    total = {"calls": CALLS, "episodes": given.episodes, "rounds": given.rounds, "machine": cpu_machine()}
    last = {f"{way}_{name}": value for way, each in lines.items() for name, value in each.items() if name != "way"}
    print(json.dumps({"session_over_plain": round(ratio, 3), "limit": LIMIT, **last, **total}))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
