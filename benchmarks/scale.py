"""What it takes to lead 10 000 episodes at once, and who gets which GPU of 64.

Usage: python benchmarks/scale.py [--episodes 10000] [--runners 20]

The pool of runners, its queue, Ray Data, S3 and the agent's loop are real; the engine is a server that answers /generate with a
written action after a latency, and the kernels answer a cell after one; the latencies were recorded in a training of tiny-cpu
(its `policy_seconds` and `kernel_seconds`), and those of the engine are stretched so that all episodes run at once. All of it
shares this machine's cores, so `episodes_per_s` is of this machine and says nothing of a cluster: what leads is what is
measured. `driver_cores` and `driver_mb` are of the process that leads, `desk_cores` of the actor beside it that hands out rows,
`lanes_mb` of the tasks beside it that wait for runners, all during the round. `mb_through_ray` is computed, from the sizes of the
rows and the index.
Requests are counted by a proxy before the S3 server, from the start of the round to its index.

GPUs: 24 engines of two GPUs, 16 ranks of one and 4 runners are placed on 8 machines of 8 logical GPUs and one machine without;
each says which GPUs it was given. The last line is one JSON object.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from hardware import cpu_machine

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernel import CellResult
from nbrl.agent.policy import Sampling
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Output, Trajectory
from nbrl.infra import ray_cluster
from nbrl.infra.engine import actor as engine_actor
from nbrl.infra.engine.actor import EnginePlan, reserve
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import Home
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.infra.placement import for_sandboxes
from nbrl.infra.ray_data import among
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.rollout import pool as pool_module
from nbrl.tasks.rollout.plan import EngineAddress, EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.rollout.pooled_runner import PooledRunner
from nbrl.tasks.rollout.runner import LiveRunner
from nbrl.tasks.rollout.samplers import samplers_of
from nbrl.tasks.runs.recipes import load
from tests.clouds import Proxy, s3_server

# Seconds of an action and of a cell, which the seed of an episode chooses from: the middles of ten equal parts of 514 actions and
# 504 cells of tiny-cpu, 64 episodes at once on two cores.
ACTION_S = (0.422, 0.629, 0.697, 0.768, 0.845, 0.919, 0.982, 1.053, 1.16, 1.389)
CELL_S = (0.006, 0.013, 0.018, 0.023, 0.029, 0.038, 0.048, 0.068, 0.088, 0.222)
CELLS = 3  # of an episode; the last one answers
STRETCH = 20.0  # so that all episodes are under way at once on two cores
ACTION = "<think>I look at the next part of it</think>\n<code>print(search('a question'))</code>"
MACHINES, GPUS, ENGINES, RANKS, RUNNERS = 8, 8, 24, 16, 4


def serve(port: int) -> None:
    """The engine: a fixed action after one of the latencies, which the request's seed chooses."""
    from aiohttp import web

    ids = ChatTokenizer.load(load("tiny-cpu").policy.path).encode_action(ACTION)
    meta = {
        "finish_reason": {"type": "stop"},
        "weight_version": "0",
        "output_token_logprobs": [[-0.5, each, None] for each in ids],
    }
    reply = json.dumps({"meta_info": meta}).encode()

    async def generate(request: web.Request) -> web.Response:
        seed = json.loads(await request.read())["sampling_params"]["sampling_seed"]
        await asyncio.sleep(STRETCH * ACTION_S[seed % len(ACTION_S)])
        return web.Response(body=reply, content_type="application/json")

    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/generate", generate)
    web.run_app(app, host="127.0.0.1", port=port, print=None, backlog=4096)


def count(server: str, pipe: Any) -> None:
    """The proxy before S3, in a process of its own; tells the requests when it is asked."""
    with Proxy(server) as proxy:
        pipe.send(proxy.url)
        while pipe.recv() is not None:
            pipe.send(Counter(line.split()[0] for line in proxy.asked))


class StubKernel:
    def __init__(self, seed: int) -> None:
        self._seed, self._cells = seed, 0

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        self._cells += 1
        await asyncio.sleep(CELL_S[(self._seed + self._cells) % len(CELL_S)])
        state = {"answer": "42" if self._cells == CELLS else None, "notepad": {"plan": [], "facts": [], "draft": ""}}
        return CellResult("ok", [Output(kind="stream", text="a passage of some length " * 8)], state)


class StubEpisodes:
    def __init__(self, plan: RunnerPlan, tokenizer: Any) -> None:
        self._plan, self._tokenizer = plan, tokenizer

    async def play(self, task: Task, hidden: Any, new: Any, plan: RoundPlan) -> Trajectory:
        kernel = StubKernel(task.seed)
        return await Episode(task, new().policy, kernel, Toolbox([]), self._tokenizer, self._plan.agent).run()


class StubRunner(PooledRunner):
    async def start(self) -> None:
        if self._live is None:
            samplers, episodes = samplers_of(self._plan), StubEpisodes(self._plan, None)
            episodes._tokenizer = samplers.renderer
            self._live = LiveRunner(episodes, samplers, AsyncExitStack())  # type: ignore[arg-type]


@contextmanager
def counted_s3(folder: Path) -> Iterator[Any]:
    """The server, the variables for it set, and the pipe to the proxy."""
    with s3_server(folder) as variables:
        ours, its = multiprocessing.Pipe()
        proxy = multiprocessing.Process(target=count, args=(variables["AWS_ENDPOINT_URL"], its), daemon=True)
        proxy.start()
        os.environ |= variables | {"AWS_ENDPOINT_URL": ours.recv()}
        yield ours
        proxy.kill()


def rows(episodes: int) -> list[dict[str, Any]]:
    same = {
        "group": "g",
        "question": "Who wrote it?",
        "ability": "qa",
        "environment": "e",
        "files": [],
        "collect": [],
        "answers": [],
    }
    return [{"id": f"q{number}-0", "sample": 0, "seed": number} | same for number in range(episodes)]


def processor_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return spent.user + spent.system


def processes(name: str) -> list[psutil.Process]:
    return [each for each in psutil.process_iter(["cmdline"]) if name in " ".join(each.info["cmdline"] or [])]


async def lead(folder: Path, episodes: int, runners: int, pipe: Any, port: int) -> dict[str, float]:
    settings = [f"rollout.runners={runners}", f"rollout.episodes_per_runner={-(-episodes // runners)}", "agent.deadline_s=3600"]
    config = load("tiny-cpu", settings)
    storage, layout = Storage(StorageSettings(root="s3://bucket/x")), RoundLayout("runs/r/iterations/000000/e0001-abcdef/round-0")
    model, home = PlacedFolder(config.policy.path), Home(str(folder / "home"))
    environments = {"e": EnvironmentPlan()}
    plan = RunnerPlan(model, environments, "attached", storage, config.agent, config.sandbox, config.rollout, home)
    pool_module.PooledRunner = StubRunner  # type: ignore[misc]
    made = RunnerPool(plan)
    most = lanes = 0

    def progress(done: int) -> None:
        nonlocal most, lanes
        most = max(most, me.memory_info().rss)
        lanes = lanes or sum(each.memory_full_info().uss for each in processes("ray::MapBatches"))

    try:
        await made.start(print)
        me, queue = psutil.Process(), processes("ray::WorkQueue")[0]
        before, started = (processor_s(me), processor_s(queue)), time.monotonic()
        asked = RoundPlan(layout.chunks(""), (), Sampling(), config.engine)
        engines = [EngineAddress(f"http://127.0.0.1:{port}")]
        index = await made.run(rows(episodes), lambda: engines, asked, progress, lambda: None, print)
        storage.write_table(layout.trajectories, index)
        seconds = time.monotonic() - started
        after = processor_s(me), processor_s(queue)
        pipe.send("count")
        requests = pipe.recv()
        check(storage.read_table(layout.trajectories), index, episodes)
        return {
            "seconds": round(seconds, 1),
            "episodes_per_s": round(episodes / seconds, 1),
            "at_once": at_once(index),
            "driver_cores": round((after[0] - before[0]) / seconds, 3),
            "driver_mb": round(most / 2**20),
            "lanes_mb": round(lanes / 2**20),
            "desk_cores": round((after[1] - before[1]) / seconds, 3),
            "requests": sum(requests.values()),
            "requests_per_trajectory": round(sum(requests.values()) / episodes, 3),
            "mb_through_ray": round(len(json.dumps(rows(episodes))) / 2**20 + 2 * index.nbytes / 2**20, 1),
            "mb_on_storage": round(sum(map(len, map(storage.read_bytes, set(index["part"].to_pylist())))) / 2**20, 1),
        }
    finally:
        await made.stop()


def check(table: pa.Table, index: pa.Table, episodes: int) -> None:
    if table["id"].to_pylist() != [row["id"] for row in rows(episodes)] or set(index["status"].to_pylist()) != {"answered"}:
        raise SystemExit(f"not all answered: {Counter(index['status'].to_pylist())}, {set(index['failure'].to_pylist())}")


def at_once(index: pa.Table) -> int:
    """Return the most episodes that were under way together."""
    pairs = zip(index["started_at"].to_pylist(), index["seconds"].to_pylist(), strict=True)
    changes = sorted(change for start, seconds in pairs for change in ((start, 1), (start + seconds, -1)))
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


class Placed:
    """In the place of an engine, a rank or a runner."""

    def __init__(self, *_: object) -> None: ...

    async def given(self) -> tuple[str, str]:
        return told()


def told() -> tuple[str, str]:
    import ray

    return str(ray.get_runtime_context().get_node_id()), os.environ.get("CUDA_VISIBLE_DEVICES", "")


def owners() -> dict[str, int]:
    """Places engines, ranks and runners on machines with logical GPUs; how many GPUs have one owner, and how many have more."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4})
    try:
        for _ in range(MACHINES):
            cluster.add_node(num_cpus=1, num_gpus=GPUS)
        ray.init(address=cluster.address, log_to_driver=False)
        engine_actor.EngineActor = Placed  # type: ignore[misc]
        settings = EngineSettings(device="cuda", tensor_parallel=2, count=ENGINES)
        plan = EnginePlan(settings=settings, logs=Path("logs"), nodes=NodeSettings(), key="k")
        places = reserve(settings, plan.own_gpus)
        engines = [engine_actor.start_actors(plan, number, place).first for number, place in enumerate(places)]
        other: Any = ray.remote(Placed)
        ranks = [other.options(num_cpus=0.01, num_gpus=1, scheduling_strategy="SPREAD").remote() for _ in range(RANKS)]
        plain = among(for_sandboxes(ray.nodes(), {}))
        runners = [other.options(num_cpus=0.01, label_selector=plain).remote() for _ in range(RUNNERS)]
        held = ray.get([each.given.remote() for each in (*engines, *ranks)])
        owned = Counter((node, gpu) for node, gpus in held for gpu in gpus.split(","))
        with_gpus = {node for node, _ in held}
        misplaced = [node for node, _ in ray.get([each.given.remote() for each in runners]) if node in with_gpus]
        return {
            "gpus": len(owned),
            "gpus_with_several_owners": sum(n > 1 for n in owned.values()),
            "runners_on_gpus": len(misplaced),
        }
    finally:
        ray.shutdown()
        cluster.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--runners", type=int, default=20)
    arguments = parser.parse_args()
    from nbrl.infra.process.child import free_port

    placed = owners()  # first: our own cluster leaves its way of authentication in the environment
    found: Mapping[str, float]
    with tempfile.TemporaryDirectory(prefix="nbrl-scale-") as place:
        folder, port = Path(place), free_port()
        (folder / "s3").mkdir()
        engine = multiprocessing.Process(target=serve, args=(port,), daemon=True)
        engine.start()
        with counted_s3(folder / "s3") as pipe:
            ray_cluster.start(load("tiny-cpu").ray, folder / "logs")
            try:
                found = asyncio.run(lead(folder, arguments.episodes, arguments.runners, pipe, port))
            finally:
                ray_cluster.stop()
        engine.kill()
    sizes: Sequence[tuple[str, int]] = [("episodes", arguments.episodes), ("runners", arguments.runners)]
    print(json.dumps({**dict(sizes), **found, **placed, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
