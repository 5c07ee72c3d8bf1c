"""What it costs to store an iteration so that nothing can be lost, against the older way of storing the same tables.

Usage: python -m benchmarks.durability_cost [--prompts 32 --group 8] [--rounds 10] [--latency 0.02]

First a real `tiny-cpu` makes two iterations, with all of its parts. Then the second one is stored again and again, the two ways
in turns, on a folder and on rclone's S3 server behind a proxy that adds a latency to every request. The present way is the real
code: flow, nodes, results, chunks, record, sweep, pruning, renewals of the lease, delivery to a file that stands for MLflow.
Doubles of engine, runners and learner bring what the real iteration brought, chunk by chunk, without waiting and without Prefect.
The older way is `benchmarks/older_storing.py`. Of both, the seconds within operations of the storage count, with encoding,
decoding, digests and flushing.

Prints one JSON line last: medians of seconds and requests (of operations on files where there is no server) of both ways on both,
and `share_of_iteration`: the seconds on a folder beyond those of the older way, as a part of the real iteration's.
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.hardware import processor
from benchmarks.older_storing import Bucket, Folder, Made, store
from benchmarks.stopwatch import Stopwatch
from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.flows.pipeline import iterate
from nbrl.infra.node_cache import NodeCache, NodeSettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.checkpoints import RESULT
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import is_update_result
from nbrl.tasks.learner.checkpoint import identity
from nbrl.tasks.learner.checkpoint.store import store_on
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult, read_tables
from nbrl.tasks.nodes import record as record_node
from nbrl.tasks.nodes.durable import NodeTask
from nbrl.tasks.rollout import chunks
from nbrl.tasks.rollout.chunks import in_order, index_of
from nbrl.tasks.rollout.plan import RoundPlan
from nbrl.tasks.runs.epochs import check_newest, newest
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.lease import BEAT_S
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.retention import prune
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.services import Services, Training
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from tests.clouds import Proxy, s3_server
from tests.durability.crash_lab import map_here
from tests.durability.crash_tracking import FileTracking
from tests.flows.made import record
from tests.tasks.learner.alone import Alone
from tests.tasks.nodes.doubles import DoubleFleet, DoubleProgress

RUN = "made"
WATCH = Stopwatch()


def train(folder: Path, prompts: int, group: int) -> Made:
    """Two real iterations; the second one."""
    settings = [f"rollout.prompts={prompts}", f"rollout.group_size={group}", "select.drop_rate=0.0", "iterations=2"]
    settings += ["evaluate.questions=8", "evaluate.every=0", f"home={folder}/home", f"storage.root={folder}/storage"]
    flags = [part for each in settings for part in ("--set", each)]
    nbrl = str(Path(sys.executable).with_name("nbrl"))
    subprocess.run([nbrl, "train", "tiny-cpu", "--run", RUN, *flags], check=True, stdout=subprocess.DEVNULL)
    storage = Storage(StorageSettings(root=str(folder / "storage")))
    done = record(storage, RUN, 1)
    update = next(key for each in done.artifacts for key in each.parts if is_update_result(key))
    return Made(
        folder / "storage" / RunLayout(RUN).folder,
        *(storage.read_table(artifact.path) for artifact in done.rounds[0]),
        storage.read_table(next(each.path for each in done.artifacts if each.path.endswith("/advantages.parquet"))),
        storage.read_bytes(update),
        storage.read_bytes(RunLayout(RUN).iteration(1).record),
        folder / "storage" / done.checkpoint,
        done.metrics["time/iteration"],
    )


def begun(made: Made, root: str) -> None:
    """Copy the run below another root, as it was before its second iteration."""
    storage = Storage(StorageSettings(root=root))
    later = ("iterations/000001", f"checkpoints/{made.checkpoint.name}", "evaluations/000002")
    for path in (path for path in made.run.rglob("*") if path.is_file()):
        name = path.relative_to(made.run).as_posix()
        if not name.startswith((*later, "summary", "delivered", "lease")):
            storage.write_bytes(f"{RunLayout(RUN).folder}/{name}", path.read_bytes())


def finished_together(trajectories: list[Trajectory]) -> list[list[Trajectory]]:
    """Return the trajectories in the chunks in which a runner writes them: those of every EVERY_S after the first that waits."""
    together: list[list[Trajectory]] = []
    until = 0.0
    for each in sorted(trajectories, key=lambda one: one.started_at + one.seconds):
        if not together or each.started_at + each.seconds > until:
            together.append([])
            until = each.started_at + each.seconds + chunks.EVERY_S
        together[-1].append(each)
    return together


class Runners:
    """Writes the trajectories of the real iteration as runners do."""

    def __init__(self, storage: Storage, made: Made) -> None:
        self._storage, self._table, self.map_tables = storage, made.trajectories, map_here
        trajectories = from_table(made.trajectories)
        place = {each.id: number for number, each in enumerate(trajectories)}
        self.together = finished_together(trajectories)
        self.chunks = [made.trajectories.take(pa.array([place[each.id] for each in chunk])) for chunk in self.together]

    async def run(self, rows: list[dict[str, Any]], engines: object, plan: RoundPlan, *others: object) -> pa.Table:
        if {row["id"] for row in rows} != set(self._table["id"].to_pylist()):
            raise RuntimeError("the iteration asks other questions than the real one")
        for folder in (*plan.earlier, plan.chunks):
            self._storage.list(folder)
        found = []
        for chunk, trajectories in zip(self.chunks, self.together, strict=True):
            found.append(index_of(trajectories, *chunks.write(self._storage, plan.chunks, chunk)))
        return in_order(pa.concat_tables(found), [row["id"] for row in rows])


ALONE: Any = Alone()


class Learner:
    """Makes the checkpoint of the real iteration."""

    def __init__(self, storage: Storage, nodes: NodeSettings, made: Made) -> None:
        self._storage, self._nodes, self._made = storage, nodes, made

    async def update(self, order: UpdateOrder) -> UpdateResult:
        storage, tables = self._storage, read_tables(order, self._storage)
        start = identity.checkpoint_identity(storage, order.checkpoint_in) if order.checkpoint_in else order.initial
        digest = identity.order_digest(order, tables, start)
        real = UpdateResult.model_validate_json((self._made.checkpoint / RESULT).read_bytes())
        result = real.model_copy(update={"order": digest, "checkpoint": order.checkpoint_out})
        shelf = store_on(storage, self._nodes, ALONE)
        shutil.copytree(self._made.checkpoint, shelf.begin(order.checkpoint_out), dirs_exist_ok=True)
        shelf.finish(order.checkpoint_out, result)
        return result


class Delivery:
    def __init__(self, books: MlflowSync) -> None:
        self._books = books

    def wake(self) -> None:
        self._books.catch_up()


async def without_prefect(self: Any, services: Services, /, *arguments: Any) -> Any:
    """Return what a node does when it is called, but for Prefect."""
    begun_at = time.monotonic()
    result = await self._task.fn(services, *arguments)
    if not isinstance(result, Artifact) and self._task.name != "record":
        raise RuntimeError(f"{self._task.name} was found, not done")
    seconds = time.monotonic() - begun_at
    return result.timed(self._task.name, seconds) if isinstance(result, Artifact) else result


async def nothing(*arguments: object, **named: object) -> None:
    pass


def store_now(made: Made, root: str, folder: Path, ready: Callable[[], object]) -> None:
    """The iteration as it is stored at present; `ready` hears when it begins."""
    storage = Storage(StorageSettings(root=root))
    storage.creates_once()  # as a run asks first; a server that does not costs more
    run = known_run(storage, RUN)
    config = resumed_config(storage, RUN, [f"home={folder}/home"])
    before = read_record(storage, run, 0)
    assert before
    tracking: Any = FileTracking(folder / "mlflow.json")
    books = MlflowSync(config, storage, run, tracking)
    books.catch_up()
    nodes = NodeSettings(cache=str(folder / "cache"))
    learner: Any = Learner(storage, nodes, made)
    delivery: Any = Delivery(books)
    runners: Any = Runners(storage, made)
    training = Training(learner, delivery)
    services = Services(config, storage, NodeCache(nodes), DoubleProgress(), DoubleFleet("1"), [runners], training)
    services.reads.questions(run.layout.data, "train")  # the first iteration has read them
    writer = Writer(run, newest(storage, run.layout))
    ready()
    with WATCH.watching():
        read_record(storage, run, 1)
        done = asyncio.run(iterate.fn(services, writer.iteration(1, before.policy), before.after))
        prune(storage, run, [before, done], {}, config.checkpoints)
        for _ in range(round(made.seconds / BEAT_S)):
            check_newest(storage, run.layout, writer.epoch)
            storage.write_json(run.layout.lease, {"epoch": writer.epoch, "beat": time.time()})


def store_before(made: Made, root: str, folder: Path, ready: Callable[[], object]) -> None:
    """The iteration as it was stored before."""
    blobs = Bucket(root.removeprefix("s3://")) if root.startswith("s3://") else Folder(Path(root))
    blobs.exists("none")  # connects
    ready()
    with WATCH.watching(), WATCH.span("all"):
        store(made, blobs, RunLayout(RUN).folder, folder / "scratch")


def measure(made: Made, rounds: int, folder: Path, proxy: Proxy | None) -> dict[str, float]:
    """Medians of both ways, in turns, on a folder or on the server behind the proxy."""
    seconds, requests = defaultdict[str, list[float]](list), defaultdict[str, list[int]](list)
    ways = {"new": store_now, "old": store_before}
    spans = defaultdict[str, list[float]](list)
    for number in range(rounds):
        for way in (ways, dict(reversed(ways.items())))[number % 2]:
            name = f"{way}-{number}"
            files = folder / ("s3/bucket" if proxy else "storage") / name
            root = f"s3://bucket/{name}" if proxy else str(files)
            begun(made, root)
            (folder / name).mkdir()
            ways[way](made, root, folder / name, proxy.methods if proxy else list)
            seconds[way].append(WATCH.seconds)
            requests[way].append(len(proxy.methods()) if proxy else WATCH.operations)
            for what, each in WATCH.spans.items() if way == "new" else ():
                spans[what].append(each)
            shutil.rmtree(folder / name)
            shutil.rmtree(files)
    place = "s3" if proxy else "folder"
    for what, each in sorted(spans.items(), key=lambda item: -sum(item[1])):
        print(f"{place}: {what} {statistics.mean(each):.4f} s", file=sys.stderr)
    return {
        f"{place}_{way}_{what}": round(statistics.median(values[way]), 4)
        for what, values in (("seconds", seconds), ("requests", requests))
        for way in ways
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds that every request to the S3 server takes longer")
    given = parser.parse_args()
    NodeTask.__call__ = without_prefect  # type: ignore[method-assign]
    record_node.acreate_table_artifact = nothing
    WATCH.wrap_storage()
    with tempfile.TemporaryDirectory(prefix="nbrl-cost-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        made = train(folder / "real", given.prompts, given.group)
        result = measure(made, given.rounds, folder, None)
        (folder / "s3").mkdir()
        with s3_server(folder / "s3") as variables, Proxy(variables["AWS_ENDPOINT_URL"], lambda: "slow", given.latency) as proxy:
            os.environ.update(variables | {"AWS_ENDPOINT_URL": proxy.url})
            result |= measure(made, given.rounds, folder, proxy)
    more = result["folder_new_seconds"] - result["folder_old_seconds"]
    described = {
        "share_of_iteration": round(more / made.seconds, 4),
        "iteration_seconds": round(made.seconds, 2),
        "trajectories": len(made.trajectories),
        "rounds": given.rounds,
        "latency_s": given.latency,
        "load": round(os.getloadavg()[2], 1),
        "hardware": processor(),
    }
    print(json.dumps(result | described))


if __name__ == "__main__":
    main()
