"""What a long run leaves behind: growth of each process and each store per iteration.

Usage: python benchmarks/growth.py [--iterations 500] [--every 10] [--folder FOLDER]

A training of tiny-cpu with iterations of 2 × 2 trajectories, steps too small to learn anything, so that most iterations have an
update, and no evaluation in between, with every real part, in a folder of its own. Every so many iterations the memory (PSS) of
its processes by their kind is summed up, and bytes and files of its stores.
The first tenth is left out, in which caches fill; `slopes` are least squares over all of the rest, `halves` those of its two
halves: where the second is above the first, growth is not linear. The last line is one JSON object, in MB per iteration.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import psutil
from hardware import cpu_machine

MB = 1e6
SETTINGS = (
    "rollout.prompts=2",
    "rollout.group_size=2",
    "environments.world.train=64",
    "environments.world.held_out=4",
    "update.lr=1e-9",
    "evaluate.every=0",
    "evaluate.questions=4",
    "select.patience=1000000",
    "checkpoints.keep_last=2",
)
KINDS = (
    ("gcs_server", "gcs_server"),
    ("raylet", "raylet/raylet"),
    ("engine", "sglang"),
    ("prefect_server", "prefect_app"),
    ("runner", "PooledRunner"),
    ("rank", "RayTrainWorker"),
    ("ray_data", r"ray::.*(Map|Actor|Split|Stats|Data)"),
    ("ray_other", "ray"),
    ("train", "nbrl train"),
    ("kernels", "inside|ipykernel|bwrap"),
)


def kind_of(process: psutil.Process) -> str:
    """Return what a process is, by its command line."""
    line = " ".join([process.name(), *process.cmdline()])
    return next((kind for kind, pattern in KINDS if re.search(pattern, line)), "other")


def memory(root: psutil.Process) -> Counter[str]:
    """Return the bytes (PSS) of a process and all below it, by kind."""
    found = Counter[str]()
    for process in [root, *root.children(recursive=True)]:
        try:
            found[f"memory/{kind_of(process)}"] += process.memory_full_info().pss
            found["count/processes"] += 1
        except psutil.Error:
            continue
    return found


def stores(home: Path, ray: Path) -> Counter[str]:
    """Return bytes and files of the stores of a home, and of Ray's folder."""
    found = Counter[str]()
    places = {
        "prefect": home / "prefect",
        "mlflow": home / "mlflow",
        "records": home / "storage/runs/growth/iterations",
        "checkpoints": home / "storage/runs/growth/checkpoints",
        "logs": home / "logs",
        "ray": ray,
    }
    for name, place in places.items():
        for path in files(place):
            found[f"files/{name}"] += 1
            found[f"bytes/{name}"] += path.lstat().st_size
    return found


def files(place: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                yield path


def slope(iterations: Sequence[float], values: Sequence[float]) -> float:
    return float(np.polyfit(iterations, values, 1)[0]) if len(iterations) > 1 else 0.0


def unit_of(name: str) -> float:
    return MB if name.startswith(("memory/", "bytes/")) else 1.0


def growth(samples: Sequence[tuple[int, Counter[str]]]) -> dict[str, object]:
    """Return the slopes of everything that was sampled, and those of both halves."""
    last = samples[-1][0]
    kept = [(iteration, each) for iteration, each in samples if iteration >= last / 10]
    names = sorted({name for _, each in kept for name in each})
    half = len(kept) // 2
    slopes, halves = {}, {}
    for name in names:
        of = [(iteration, each[name] / unit_of(name)) for iteration, each in kept]
        slopes[name] = round(slope(*zip(*of, strict=True)), 4)
        halves[name] = [round(slope(*zip(*part, strict=True)), 4) for part in (of[: half + 1], of[half:])]
    ended = {name: round(value / unit_of(name), 2) for name, value in sorted(kept[-1][1].items())}
    return {"slopes": slopes, "halves": halves, "at_the_end": ended}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    home = (given.folder or Path(tempfile.mkdtemp(prefix="nbrl-growth-"))) / "home"
    settings = [*SETTINGS, f"iterations={given.iterations}", f"home={home}", f"storage.root={home}/storage"]
    line = [str(Path(sys.executable).with_name("nbrl")), "train", "tiny-cpu", "--run", "growth"]
    began, samples, records = time.monotonic(), list[tuple[int, Counter[str]]](), home / "storage/runs/growth/iterations"
    line += [part for each in settings for part in ("--set", each)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL) as process:
        root, due = psutil.Process(process.pid), given.every
        while process.poll() is None:
            time.sleep(0.5)
            done = len(list(records.glob("*/record.json")))
            if done < due:
                continue
            ray = next(iter(Path("/tmp").glob(f"nbrl-ray-{process.pid}.*")))
            samples.append((done, memory(root) + stores(home, ray)))
            print(f"{done} iterations, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            due = done + given.every
    if process.returncode:
        raise SystemExit(f"the training ended with {process.returncode}")
    print(
        json.dumps(
            {
                "benchmark": "growth",
                "machine": cpu_machine(),
                "iterations": samples[-1][0],
                "seconds": round(time.monotonic() - began),
                **growth(samples),
            }
        )
    )


if __name__ == "__main__":
    main()
