"""Kills a training run again and again, continues it from its storage alone, and compares it with a run that nothing disturbed.

Usage: python -m benchmarks.resume [--kills 20] [--root folder|s3] [--seed 0] [--lag 0|1|2|stream] [--corrected]

Both runs are real: Prefect, Ray, sandboxed kernels, SGLang, the learner, MLflow, with a small `tiny-cpu`. The k-th SIGKILL to the
process of the command comes once the run has k / (kills + 1) of what the undisturbed run wrote, and something that was not there
when this process began, plus up to 0.3 s. Then `nbrl resume` continues, every second time with a new home. With `--root s3` the
storage is rclone's S3 server, and the killed run reaches it through a proxy that refuses, slows down, cuts and drops 1 % of all
requests each. With `--lag 1` rollouts run beside updates, with `--lag 2` those of two batches at once; with `--corrected` the
update then reads the engine's log-probs, whose last digits are others where a trajectory is sampled again. With `--lag stream`
rollouts never stop, batches are what finished first, corrected, so that both runs have other ones and are not compared.

Prints one JSON line last. `survived`: kills after which the next process wrote something new or ended well. `lost_prompts` and
`doubled_prompts`: those of the undisturbed run that no record has, and those that were trained on twice. `bit_exact`: tokens,
rewards, selections, advantages, cursors, weights and evaluations of all iterations are equal. `weights_apart`: the norm of the
difference of both final weights over that of what the undisturbed run learned. `median_seconds_lost`: from the
newest object on the storage to the kill. A kill follows an object by design; so `seconds_lost_at_random` is the mean of moments
at random in the undisturbed run, and `most_seconds_lost` the longest time in it without an object. `median_start_seconds`: from
the start of a process that continues to its first new object.

Of a stream, `finished`: trajectories that were on the storage after a kill; `finished_lost`: those of them that no batch has and
that are not on the storage at the end; `finished_again`: those that were other tokens later. `lost_prompts` are groups that were
in flight in a record and were neither admitted nor in flight in the one after.
"""

import argparse
import contextlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load, load_file

from benchmarks.hardware import processor
from benchmarks.watched import Objects, lost_at_random, median
from nbrl.agent.trajectory import Status, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import is_chunk
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.recipes import load as load_recipe
from nbrl.tasks.runs.results import evaluation_of
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.scope import Weights
from tests.clouds import Faults, Proxy, s3_server
from tests.flows.golden import digests
from tests.flows.made import record
from tests.processes import left_over, mark

NBRL = str(Path(sys.executable).with_name("nbrl"))
SETTINGS = [
    "rollout.prompts=8",
    "rollout.group_size=4",
    "evaluate.questions=12",
    "evaluate.every=1",
    "select.drop_rate=0.0",
    "environments.world.train=64",
    "environments.world.held_out=12",
]
LAG = {
    "0": (),
    "1": ("pipeline.lag=1",),
    "stream": ("pipeline.lag=2", "pipeline.stream=true", "pipeline.admit=finish", "select.max_rounds=1"),
    "2": ("pipeline.lag=2", "select.max_rounds=1", "update.lora.publish=adapter", "evaluate.every=0", "checkpoints.keep_last=6"),
}
CORRECTED, UNCORRECTED = "update.tis.kind=mask_tokens", "pipeline.uncorrected=true"
JITTER_S, POLL_S, GONE_S = 0.3, 0.02, 60.0
SHARE = 0.01  # of requests that meet each kind of fault


@dataclass(frozen=True)
class Place:
    """A storage root, the folder of this machine in which its objects are files, and the variables with which it is reached."""

    root: str
    files: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def storage(self) -> Storage:
        """The same objects without a server between."""
        return Storage(StorageSettings(root=str(self.files)))


@dataclass(frozen=True)
class Attempt:
    """A process of the command that ended with `status`, or was killed if that is None. `start_s`: until its first new object."""

    status: int | None
    said: str
    seconds: float
    start_s: float | None
    lost_s: float = 0.0
    left: tuple[str, ...] = ()


class Trained:
    """A run of this name on a storage, trained by one process after the other."""

    def __init__(self, name: str, place: Place, folder: Path, lag: str, settings: Sequence[str]) -> None:
        """`settings` are further ones. Beyond a lag of 1 it has enough iterations for weights of three versions."""
        self.name, self.place, self._folder, self._iterations = name, place, folder, 3 + 2 * (lag in ("2", "stream"))
        self._settings = [f"iterations={self._iterations}", *SETTINGS, *LAG[lag], *settings]
        self.objects = Objects(place.files / RunLayout(name).folder)
        self.homes, self.finished, self.again = 0, dict[str, Any](), set[str]()
        self.attempts: list[Attempt] = []

    @property
    def home(self) -> Path:
        return self._folder / f"{self.name}-home-{self.homes}"

    def command(self) -> list[str]:
        """Return the command that begins the run, or continues it from its storage."""
        home = f"home={self.home}"
        if (self.objects.folder / "run.json").exists():
            return [NBRL, "resume", self.name, "--root", self.place.root, "--set", home]
        settings = [*self._settings, home, f"storage.root={self.place.root}"]
        return [NBRL, "train", "tiny-cpu", "--run", self.name, *(part for each in settings for part in ("--set", each))]

    def attempt(self, threshold: int | None = None, delay: float = 0.0) -> Attempt:
        """Train until the end or, with a threshold, until the run has so many objects, one of them new."""
        label = f"{self.name}-{len(self.attempts)}"
        log = self._folder / f"{label}.log"
        begun, start, lost = time.monotonic(), None, None
        with log.open("wb") as output:
            environment = mark(label) | self.place.variables
            process = subprocess.Popen(self.command(), stdout=subprocess.DEVNULL, stderr=output, env=environment)
        try:
            while process.poll() is None:
                if self.objects.grown() and start is None:
                    start = time.monotonic() - begun
                if threshold is not None and start is not None and self.objects.count >= threshold:
                    time.sleep(delay)
                    newest = self.objects.newest()
                    process.kill()
                    lost = time.time() - newest
                    break
                time.sleep(POLL_S)
        finally:
            process.kill()
        status = process.wait()
        gone = time.monotonic() + GONE_S
        while (left := left_over(label)) and time.monotonic() < gone:
            time.sleep(0.1)
        killed = lost is not None and status < 0
        seconds = time.monotonic() - begun
        said = log.read_text(errors="replace")[-3000:]
        done = Attempt(None if killed else status, said, seconds, start, lost or 0.0, tuple(left))
        self.attempts.append(done)
        self.objects.grown()
        return done

    def came_to(self) -> dict[str, Any]:
        """Return all that must be the same bit for bit."""
        storage = self.place.storage
        records = self._records()
        run = known_run(storage, self.name)
        policies = [Weights(digest=run.policy), *(each.policy for each in records)]
        evaluations = [evaluation_of(storage, run, policy) for policy in policies]
        return {
            "digests": digests(storage, self.name, self._iterations),
            "cursors": [each.cursor for each in records],
            "weights": [each.weights for each in records],
            "selections": [storage.read_table(r.selection.path).to_pylist() for each in records for r in each.rounds],
            "rewards": [storage.read_table(r.rewards.path).to_pylist() for each in records for r in each.rounds],
            "evaluations": [each.artifact.values if each else None for each in evaluations],
        }

    def weights(self) -> list[np.ndarray]:
        """Return the final weights, by name."""
        data = self.place.storage.read_bytes(f"{self._records()[-1].checkpoint}/{HF}/model.safetensors")
        return [value for _, value in sorted(load(data).items())]

    def asked(self) -> list[str]:
        """Return the groups of all prompts that records have, in order; one is repeated for every trajectory that is
        there twice.
        """
        storage, groups = self.place.storage, list[str]()
        for each in self._records():
            for round_ in each.rounds:
                groups += storage.read_table(round_.prompts.path)["group"].to_pylist()
                ids = storage.read_table(round_.trajectories.path)["id"].to_pylist()
                groups += [name.rpartition("-")[0] for name in set(ids) for _ in range(ids.count(name) - 1)]
        return groups

    def note_finished(self) -> None:
        """Note the trajectories of a stream that are on the storage, and those that were others before."""
        for name, nodes in self._left().items():
            if self.finished.setdefault(name, nodes) != nodes:
                self.again.add(name)

    def streamed(self) -> dict[str, int]:
        """Return what became of the trajectories of a stream that had finished, and of its groups."""
        storage, learned, lost = self.place.storage, dict[str, Any](), 0
        flying = set[int]()
        for each in self._records():
            (round_,) = each.rounds
            learned |= self._nodes(round_.trajectories.parts)
            admitted = set(storage.read_table(round_.prompts.path)["position"].to_pylist())
            now = set(storage.read_table(each.asked[-1].path)["position"].to_pylist())
            lost += len(flying - admitted - now)
            flying = now
        self.again |= {name for name, nodes in learned.items() if self.finished.get(name, nodes) != nodes}
        left = self.finished.keys() - learned.keys() - self._left().keys()
        return {
            "finished": len(self.finished),
            "finished_lost": len(left),
            "finished_again": len(self.again),
            "lost_prompts": lost,
        }

    def _left(self) -> dict[str, Any]:
        return self._nodes(filter(is_chunk, self.place.storage.list(RunLayout(self.name).stream().folder)))

    def _nodes(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return what was sampled, by the id of the trajectory, of those that did not fail."""
        made = [each for key in keys for each in from_table(self.place.storage.read_table(key))]
        return {each.id: each.nodes for each in made if each.status != Status.FAILED}

    def contradictions(self) -> list[dict[str, str]]:
        """Return what `nbrl audit` finds."""
        line = [NBRL, "audit", self.name, "--root", self.place.root, "--json", "--set", f"home={self.home}"]
        environment = os.environ | self.place.variables
        done = subprocess.run(line, capture_output=True, text=True, env=environment, check=False)
        if not done.stdout.strip():
            return [{"where": "audit", "what": done.stderr[-2000:]}]
        found: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])["contradictions"]
        return found

    def _records(self) -> list[Record]:
        return [record(self.place.storage, self.name, number) for number in range(self._iterations)]


def killed_again_and_again(run: Trained, objects: int, kills: int, seed: int) -> None:
    """Train a run that is killed at so many moments, evenly spaced over `objects`, until it ends."""
    draw = random.Random(seed)
    for number in range(1, kills + 1):
        done = run.attempt(objects * number // (kills + 1), draw.uniform(0.0, JITTER_S))
        tell(run, done)
        run.note_finished()
        if done.status is not None:
            return
        run.homes += number % 2
    tell(run, run.attempt())


def tell(run: Trained, done: Attempt) -> None:
    end = "killed" if done.status is None else f"ended with {done.status}"
    start = "no new object" if done.start_s is None else f"first new object after {done.start_s:.1f} s"
    what = f"{run.name} {len(run.attempts)}: {end} after {done.seconds:.1f} s; {start}; {run.objects.count} objects"
    print(what, f"{done.lost_s:.1f} s lost" if done.status is None else "", file=sys.stderr, flush=True)
    if done.status not in (None, 0):
        print(done.said, file=sys.stderr, flush=True)


@contextlib.contextmanager
def places(root: str, folder: Path, seed: int) -> Iterator[tuple[Place, Place, Faults]]:
    """Where the undisturbed run is stored, where the killed one is, and what is counted of the faults between."""
    faults = Faults(SHARE, seed)
    if root == "folder":
        place = Place(str(folder / "storage"), folder / "storage")
        yield place, place, faults
        return
    (folder / "s3").mkdir()
    with s3_server(folder / "s3") as variables, Proxy(variables["AWS_ENDPOINT_URL"], faults.next) as proxy:
        address, files = "s3://bucket/root", folder / "s3/bucket/root"
        yield Place(address, files, variables), Place(address, files, variables | {"AWS_ENDPOINT_URL": proxy.url}), faults


def measure(kills: int, root: str, seed: int, folder: Path, lag: str = "0", settings: Sequence[str] = ()) -> dict[str, Any]:
    """Return the benchmark, with everything that it makes below `folder`; `settings` are further ones of both runs."""
    with places(root, folder, seed) as (good, bad, faults):
        undisturbed, run = Trained("undisturbed", good, folder, lag, settings), Trained("killed", bad, folder, lag, settings)
        tell(undisturbed, undisturbed.attempt())
        if undisturbed.attempts[0].status != 0:
            raise SystemExit(f"the run that nothing disturbed failed: {undisturbed.attempts[0].said}")
        killed_again_and_again(run, undisturbed.objects.count, kills, seed)
        deaths = [each for each in run.attempts if each.status is None]
        after = run.attempts[1:]
        result = {
            "crash_points": len(deaths),
            "survived": sum(each.status == 0 or (each.status is None and each.start_s is not None) for each in after),
            "lost_prompts": -1,
            "doubled_prompts": -1,
            "bit_exact": False,
            "median_seconds_lost": median([each.lost_s for each in deaths]),
            "median_start_seconds": median([each.start_s for each in after if each.start_s is not None]),
            "processes_left": sum(len(each.left) for each in run.attempts),
        }
        if run.attempts[-1].status == 0:
            asked, wanted = run.asked(), undisturbed.asked()
            found = run.contradictions()
            for each in found:
                print(f"audit: {each}", file=sys.stderr, flush=True)
            result |= {
                "lost_prompts": len(set(wanted) - set(asked)),
                "doubled_prompts": len(asked) - len(set(asked)),
                "audit_contradictions": len(found),
            }
            if lag == "stream":
                result |= run.streamed()
            else:
                result |= {
                    "bit_exact": run.came_to() == undisturbed.came_to(),
                    "weights_apart": apart(run.weights(), undisturbed.weights()),
                }
        gaps = undisturbed.objects.gaps()
        return result | {
            "seconds_lost_at_random": lost_at_random(gaps),
            "most_seconds_lost": round(max(gaps), 2),
            "undisturbed_seconds": round(undisturbed.attempts[0].seconds, 1),
            "killed_seconds": round(sum(each.seconds for each in run.attempts), 1),
            "objects": undisturbed.objects.count,
            "faults": dict(faults.counts),
        }


def apart(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    """Return the norm of the difference of two policies over that of the difference between the second and the initial one."""
    first = [value for _, value in sorted(load_file(f"{load_recipe('tiny-cpu').policy.path}/model.safetensors").items())]
    return float(norm(one, other) / norm(other, first))


def norm(one: list[np.ndarray], other: list[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(one, other, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--root", choices=("folder", "s3"), default="folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lag", choices=LAG, default="0")
    parser.add_argument("--corrected", action="store_true", help="with a lag, correct by the engine's log-probs")
    given = parser.parse_args()
    corrected = given.corrected or given.lag == "stream"
    settings = [CORRECTED if corrected else UNCORRECTED] if given.lag != "0" else []
    with tempfile.TemporaryDirectory(prefix="nbrl-resume-", ignore_cleanup_errors=True) as folder:
        result = measure(given.kills, given.root, given.seed, Path(folder), given.lag, settings)
    storage = "folder" if given.root == "folder" else "rclone's S3 server on this machine, behind the proxy"
    told = {
        "storage": storage,
        "seed": given.seed,
        "settings": [*LAG[given.lag], *settings],
        "load": round(os.getloadavg()[2], 1),
    }
    print(json.dumps(result | told | {"hardware": processor()}))


if __name__ == "__main__":
    main()
