"""Real flows, nodes, storage and books over doubles of engine, runners, learner, rater and MLflow, in processes that die.

Run as a program: it imports everything once, then forks a child for each line of standard input, `{"work", "root", "home",
"die_at"}`, and answers with a line, `{"status", "steps", "said"}`. `work` is a training, or else a preparation of data or a warm
start, whose output is `root`. A step is a write, a deletion, a publish, a call of MLflow, or one stage of a checkpoint. The child
dies in front of step `die_at`, as by SIGKILL: no `finally` runs.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastapi  # noqa: F401 (Prefect imports it late; the children share what is imported here)
import matplotlib.backends.backend_agg
import matplotlib.figure  # noqa: F401

from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.flows import prepare as prepare_module
from nbrl.flows import train as train_module
from nbrl.flows import warmstart as warmstart_module
from nbrl.infra import ray_cluster
from nbrl.infra.blobs import LocalBlobs
from nbrl.infra.manifest import check_folder
from nbrl.infra.node_cache import NodeCache, NodeSettings
from nbrl.infra.s3_blobs import S3Blobs
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.reward.judge import ask
from nbrl.tasks.runs import lease
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_policy
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.services import restarts
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.services import Services, Training
from nbrl.tasks.tracking import delivery as delivery_module
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from nbrl.tasks.warmstart.recipe import WarmstartArguments
from nbrl.tasks.warmstart.recipe import load as load_warmstart
from nbrl.tasks.warmstart.work_folder import WorkFolder
from tests.durability.crash_doubles import PAUSE_S, Death, Fleet, InlineDelivery, Learner, Runners, map_here
from tests.durability.crash_tracking import FileTracking

SETTINGS = [
    "iterations=2",
    "rollout.prompts=4",
    "rollout.group_size=3",
    "select.drop_rate=0.0",
    "evaluate.every=1",
    "evaluate.questions=5",
    "environments.world.train=8",
    "environments.world.held_out=5",
    "checkpoints.keep_last=1",
    "record.traces=1",
]
TINY = Path(__file__).parents[2] / "infra/policies/tiny"
LAG = {
    0: [
        *("iterations=5", "checkpoints.state_every=3", "select.pools={learnable: 3, unseen: 1, hard: 2}"),
        f"update.loss={{kind: distill, teacher: {TINY}, reward: 0.5}}",
    ],
    1: [
        *("iterations=3", "pipeline.lag=1", "pipeline.uncorrected=true"),
        *("checkpoints.keep_last=2", "select.retire_at=0.6"),
    ],
    2: [
        *("iterations=5", "pipeline.lag=2", "pipeline.uncorrected=true", "checkpoints.keep_last=3"),
        *("select.max_rounds=1", "update.lora.publish=adapter", "evaluate.every=2"),
    ],
}
STREAM = [
    *("iterations=5", "pipeline.stream=true", "pipeline.lag=2", "pipeline.uncorrected=true", "checkpoints.keep_last=3"),
    *("select.max_rounds=1", "evaluate.every=2"),
]
WORLDS = [
    *("environments.bank.kind=own", "environments.bank.place=tests.tasks.bank_world:Bank", "environments.bank.weight=1"),
    *("iterations=1", "evaluate.questions=1"),
]
BRANCHES = [
    "rollout.branch={at: uniform, points: 2, width: 2}",
    "advantage.estimator=vine",
    "iterations=1",
    "evaluate.questions=1",
]
RUN = "r"
ASKED = "asked.jsonl"  # in the home: what the rater was asked
NOTHING = 10**9


def services_of(death: Death) -> Callable[[RunConfig, Run, Progress], Any]:
    @asynccontextmanager
    async def doubles(config: RunConfig, run: Run, progress: Progress, up: Callable[[], None]) -> AsyncIterator[Services]:
        storage, newest = Storage(config.storage), newest_policy(Storage(config.storage), run)
        local = storage.local_path(newest.checkpoint) if newest.checkpoint else None
        if local is not None:
            check_folder(local)
        fleet = Fleet(str(newest.updates), death, config.pipeline.lag + 1 if config.publishes_adapters else 0)
        tracking: Any = FileTracking(Path(config.home, "mlflow.json"), death.step)
        delivery: Any = InlineDelivery(MlflowSync(config, storage, run, tracking))
        pause_s = PAUSE_S if config.pipeline.lag else 0.0
        pools: list[Any] = [Runners(storage, fleet, pause_s, config) for _ in range(config.pools)]
        nodes = NodeSettings(cache=f"{config.home}/folders")
        learner: Any = Learner(storage, death, reads=config.update.tis is not None, nodes=nodes)
        up()
        yield Services(config, storage, NodeCache(nodes), progress, fleet, pools, Training(learner, delivery))
        await learner.settle()
        delivery.finish()

    return doubles


def training(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    lease.LEASE_S = job["lease_s"]
    restarts.WAITS_S = (0.0,)
    train_module.training_services = services_of(death)
    delivery_module.Tracking = lambda settings, home: FileTracking(home.root / "mlflow.json", death.step)
    config = load("tiny-cpu", [*SETTINGS, f"home={job['home']}", f"storage.root={job['root']}", *job.get("overrides", [])])
    return train_module.train(Prepared(config=config), RUN, take_over=job["take_over"], redo=list(map(tuple, job["redo"])))


async def nothing(*_: object) -> None:
    """In place of what starts Ray."""


def note(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(f"{json.dumps(text)}\n")


def preparation(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    async def rated(policy: object, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        objective = 1 if len(prompt.messages[-1].text) % 3 else 0
        note(Path(job["home"], ASKED), prompt.messages[-1].text)
        return Generation([], [], "v", "stop", json.dumps({"objectivity": objective, "temporal_stability": 1}))

    Path(job["home"]).mkdir(parents=True, exist_ok=True)
    prepare_module.map_tables, ray_cluster.use = map_here, nothing
    ask.ChatPolicy.generate = rated  # type: ignore[method-assign]
    questions = Path(job["log"]).with_name("questions.jsonl")
    asked = [{"question": f"{'What' * count} is {count}?", "answers": str(count)} for count in range(9)]
    questions.write_text("\n".join(map(json.dumps, [*asked, asked[0]])))
    source = {"name": "q", "path": questions, "licence": "CC0"}
    rater = {"base_url": "http://127.0.0.1:9/v1", "name": "m", "key": None, "concurrency": 1}
    settings = PrepareSettings.model_validate({"sources": [source], "rate": rater})
    return prepare_module.prepare(settings, Path(job["root"]), job["home"])


def warm_start(job: Mapping[str, Any], death: Death) -> Awaitable[Any]:
    async def learner(stack: object, settings: object, plan: object, model: object, work: WorkFolder, *_: object) -> Learner:
        return Learner(work.storage, death, reads=False, nodes=NodeSettings(cache=f"{job['home']}/folders"))

    ray_cluster.use, warmstart_module._learner = nothing, learner  # type: ignore[assignment]
    death.wrap(shutil, "rmtree")
    death.wrap(Path, "rename")
    storage = Storage(StorageSettings(root=f"{job['home']}/storage"))
    tiny = str(TINY)
    given = WarmstartArguments(start=tiny, training="tiny-cpu", demonstrations="world")
    few = ["phases.demonstrations.demonstrations.world.count=6", "batch=2", "checkpoint_steps=1"]
    settings, training = load_warmstart(given, few, storage), load("tiny-cpu", SETTINGS)
    return warmstart_module.warmstart(settings, training, storage, Path(job["root"]), job["home"])


WORK = {"train": training, "prepare": preparation, "warmstart": warm_start}


def child(job: Mapping[str, Any]) -> int:
    """Work until the end or death. Returns the number of steps."""
    death = Death(job["die_at"], job["pause_at"], job["full_at"], Path(job["log"]).with_suffix(".paused"))
    for name in ("write", "create", "put", "delete", "delete_keys"):
        death.wrap(LocalBlobs, name)
        death.wrap(S3Blobs, name)
    asyncio.run(_ended(WORK[job["work"]](job, death)))
    return death.steps


async def _ended(work: Awaitable[Any]) -> None:
    await work


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        log = Path(job["log"])
        pid = os.fork()
        if not pid:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            status = 1
            try:
                steps = child(job)
                log.with_suffix(".steps").write_text(str(steps))
                status = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        steps_file = log.with_suffix(".steps")
        answer = {"status": status, "steps": int(steps_file.read_text()) if status == 0 else 0, "said": log.read_text()[-3000:]}
        print(json.dumps(answer), flush=True)


class Lab:
    """The program, and its answers. It ends with the pipe."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self.environment = folder, dict(environment)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.durability.crash_lab"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )

    def begin(
        self,
        root: Path | str,
        home: Path,
        *,
        work: str = "train",
        die_at: int = NOTHING,
        pause_at: int = NOTHING,
        full_at: int = NOTHING,
        take_over: bool = False,
        lease_s: float = 60.0,
        overrides: Sequence[str] = (),
        redo: Sequence[tuple[int, str]] = (),
    ) -> None:
        assert self._process.stdin
        self.paused.unlink(missing_ok=True)
        job = {"work": work, "root": str(root), "home": str(home), "die_at": die_at, "pause_at": pause_at, "full_at": full_at}
        job |= {"take_over": take_over, "lease_s": lease_s, "overrides": list(overrides), "redo": list(redo)}
        job["log"] = str(self._folder / "log")
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Status, steps and output of what `begin` began."""
        assert self._process.stdout
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def train(self, root: Path | str, home: Path, **how: Any) -> dict[str, Any]:
        self.begin(root, home, **how)
        return self.end()

    @property
    def paused(self) -> Path:
        """What a process that stopped in front of a step writes: its number, and the step."""
        return self._folder / "log.paused"

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)


if __name__ == "__main__":
    main()
