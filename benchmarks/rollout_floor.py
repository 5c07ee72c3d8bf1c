"""A whole rollout beside what it cannot do without: the processor time of its engine alone and of its kernels alone.

Usage: python benchmarks/rollout_floor.py [--rounds 5]

Rollouts of `tiny-cpu` run with all that a training keeps alive: Ray, the learner, a Prefect server. After each one its own
episodes are played again in this process with the actions that were recorded (`kernels`: clean kernels, all cells and tool calls,
as many at once, and no engine), and its requests are made again of the same engine (`engine`: the same prompts, limits and seeds,
as many episodes at once, and no kernels). Where either gives something else than in the rollout, the benchmark ends. Before a
rollout, and before its requests are made again, the engine's cache is emptied, as it is when weights are published. All rollouts
are those of the initial policy.

`kernels_cpu_s` is the processor time of this process, which is also Ray's driver, of the zygote and of the kernels until they
have ended (as root, where there is a cpuacct cgroup); `engine_cpu_s` that of the engine's processes and, for the requests, of
this one. `floor_s` is their sum over the cores: what this machine would take if it did nothing else and never waited. `ratio`
is a rollout's seconds, from its first episode's start to its last one's end, over its own floor. All are medians over the rounds.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from hardware import cpu_machine
from kernel_start import account

from nbrl.agent.episode import Task
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation
from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.infra import prefect_server
from nbrl.infra.engine.settings import headers
from nbrl.infra.home import Home
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.process.garbage import collect_rarely
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.nodes.rollout import rollout, task_rows
from nbrl.tasks.nodes.select import sample
from nbrl.tasks.rollout.episodes import Episodes, HiddenParts
from nbrl.tasks.rollout.plan import EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.samplers import Sampler
from nbrl.tasks.rollout.work_queue import WorkQueue
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.preflight import prepared
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.runs.writer import Writer, writing
from nbrl.tasks.services.services import Services
from nbrl.tasks.services.start import training_services

HIDDEN = HiddenParts({}, (), ())


class Silent:
    """A Progress that shows nothing."""

    def begin(self, title: str) -> None: ...
    def started(self, name: str) -> None: ...
    def advanced(self, name: str, done: int, total: int) -> None: ...
    def ended(self, name: str, seconds: float) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Asked:
    """A request of an episode, and what was sampled."""

    prompt: Prompt
    max_tokens: int
    seed: int
    sampled: list[int]


class Replayed:
    """A policy that samples what was recorded, and notes what it is asked."""

    def __init__(self, recorded: Trajectory, stop_ids: Sequence[int]) -> None:
        self._sampled, self._stop_ids = iter(recorded.sampled()), stop_ids
        self.asked: list[Asked] = []

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        node = next(self._sampled)
        self.asked.append(Asked(prompt, max_tokens, seed, node.token_ids))
        finish = "stop" if node.token_ids[-1] in self._stop_ids else "length"
        return Generation(node.token_ids, node.logprobs, node.weights_version, finish)


async def crowd(works: Sequence[Callable[[], Awaitable[None]]], at_once: int) -> float:
    """Do all works, so many at once; return the seconds it took."""
    turns, began = iter(works), time.perf_counter()

    async def one() -> None:
        for work in turns:
            await work()

    await asyncio.gather(*(one() for _ in range(at_once)))
    return time.perf_counter() - began


def cpu_s(server: psutil.Process) -> float:
    """Processor time so far of a server and the processes that it started."""
    times = [each.cpu_times() for each in (server, *server.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def listening(url: str) -> psutil.Process:
    """Return the process of this machine that serves at a URL."""
    port = urlsplit(url).port
    (process,) = {each.pid for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port}
    return psutil.Process(process)


class Floors:
    """Plays the episodes of a rollout again, without an engine, and then its requests, without kernels."""

    def __init__(self, services: Services, runner: Runner, plan: RunnerPlan, at_once: int) -> None:
        self._services, self._at_once, self._environments = services, at_once, plan.environments
        self._episodes: Episodes = runner._now().episodes
        self._stop_ids = runner._now().samplers.renderer.stop_ids

    async def kernels(self, rows: dict[str, dict[str, Any]], recorded: Sequence[Trajectory]) -> tuple[float, list[list[Asked]]]:
        config, asked = self._services.config, list[list[Asked]]()
        plan = RoundPlan("", (), config.sampling, config.engine)

        async def play(trajectory: Trajectory) -> None:
            hidden = ("files", "collect", "answers", "question_id", "reference", "max_steps", "deadline_s")
            given = {name: value for name, value in rows[trajectory.id].items() if name not in hidden}
            task = Task(**given, instruction=self._environments[given["environment"]].prompt)
            policy = Replayed(trajectory, self._stop_ids)
            played = await self._episodes.play(task, HIDDEN, lambda: Sampler(policy, _never, lambda: 0.0), plan)
            if (played.nodes, played.answer) != (trajectory.nodes, trajectory.answer):
                raise RuntimeError(f"the replay of {trajectory.id} differs: {played.status} {played.failure}")
            asked.append(policy.asked)

        seconds = await crowd([lambda each=each: play(each) for each in recorded], self._at_once)  # type: ignore[misc]
        await self._episodes._notebooks._pool.settle()
        return seconds, asked

    async def engine(self, asked: Sequence[Sequence[Asked]]) -> float:
        config = self._services.config
        (address,) = self._services.engines.addresses("0")
        async with engine_session(config.engine.request_timeout_s, headers(address.key)) as session:

            async def ask(requests: Sequence[Asked]) -> None:
                seeded = config.engine.seeded_sampling
                policy = SglangPolicy(session, address.url, self._stop_ids, config.sampling, seeded)
                for each in requests:
                    done = await policy.generate(each.prompt, each.max_tokens, each.seed)
                    if done.token_ids != each.sampled:
                        raise RuntimeError("the engine sampled something else than in the rollout")

            return await crowd([lambda each=each: ask(each) for each in asked], self._at_once)  # type: ignore[misc]


async def _never() -> bool:
    return False


async def _rounds(config: RunConfig, writer: Writer, rounds: int) -> list[dict[str, float]]:
    storage, data = Storage(config.storage), writer.run.layout.data
    async with training_services(config, writer.run, Silent()) as services:
        await services.learner.ready()
        corpora = await asyncio.to_thread(stored.corpora, storage, data, config.environments)
        environments = {
            name: EnvironmentPlan(corpora.get(name), each.tools, each.prompt) for name, each in config.environments.items()
        }
        home, model = Home(config.home), PlacedFolder(config.policy.path)
        plan = RunnerPlan(model, environments, data.attached_folder, storage, config.agent, config.sandbox, config.rollout, home)
        with account() as bill:
            assert bill is not None
            runner = Runner(plan, 0, WorkQueue())
            await runner.start()
            try:
                engine = listening(services.engines.addresses("0")[0].url)
                floors = Floors(services, runner, plan, config.rollout.episodes_per_runner)
                found = []
                for number in range(rounds + 1):  # the first is a rehearsal
                    await services.engines.publish(None, "0")
                    scope = writer.iteration(number, Weights(digest=writer.run.policy))
                    prompts = await sample.alone(services, scope, number * config.rollout.prompts, 0)
                    trajectories = await rollout.alone(services, scope, prompts, 0)
                    recorded = [each for key in trajectories.parts for each in from_table(storage.read_table(key))]
                    table = await asyncio.to_thread(services.read, prompts)
                    rows = {row["id"]: row for row in task_rows(table, config.rollout.group_size, scope.draw("rollout"))}
                    before = bill.read_ms()
                    kernels_s, asked = await floors.kernels(rows, recorded)
                    kernels_cpu_s = (bill.read_ms() - before) / 1000
                    await services.engines.publish(None, "0")
                    before = cpu_s(engine) + bill.read_ms() / 1000
                    engine_s = await floors.engine(asked)
                    engine_cpu_s = cpu_s(engine) + bill.read_ms() / 1000 - before
                    floor_s = (kernels_cpu_s + engine_cpu_s) / (os.cpu_count() or 1)
                    busy_s = trajectories.values["rollout/busy_seconds"]
                    found.append(
                        {
                            "rollout_s": busy_s,
                            "kernels_s": kernels_s,
                            "kernels_cpu_s": kernels_cpu_s,
                            "engine_s": engine_s,
                            "engine_cpu_s": engine_cpu_s,
                            "floor_s": floor_s,
                            "ratio": busy_s / floor_s,
                            "tokens": trajectories.values["rollout/sampled_tokens"],
                        }
                    )
            finally:
                await runner.stop()
    return found[1:]


async def measure(rounds: int, folder: Path) -> dict[str, Any]:
    collect_rarely()  # as in a runner
    settings = [f"home={folder / 'home'}", f"storage.root={folder / 'storage'}"]
    start = prepared("tiny-cpu", settings, "train")
    config, storage = start.config, Storage(start.config.storage)
    server = prefect_server.ensure(Home(config.home))
    try:
        with opened(start, "floor", storage) as known:
            async with writing(known, storage, False, print, config.model_dump(mode="json"), "") as writer:
                found = await _rounds(config, writer, rounds)
    finally:
        server.stop()
    middle = {name: round(statistics.median(each[name] for each in found), 2) for name in found[0]}
    return middle | {
        "ratios": [round(each["ratio"], 2) for each in found],
        "trajectories": config.rollout.prompts * config.rollout.group_size,
        "at_once": config.rollout.episodes_per_runner,
        "rounds": rounds,
        "cores": os.cpu_count() or 1,
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with account() as bill:
        if bill is None:
            raise SystemExit("rollout_floor.py: there is no cpuacct cgroup here, or this is not root")
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(given.rounds, Path(folder)))))


if __name__ == "__main__":
    main()
