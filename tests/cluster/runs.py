"""A small training on the machines of a cluster."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.cluster.machines import RAY_PORT, Machines

TINY = "infra/policies/tiny"


def settings(machines: Machines, **more: object) -> dict[str, object]:
    """Of a training whose engine, sandboxes and ranks stand where conftest.RESOURCES has them."""
    return {
        "iterations": 2,
        "rollout.prompts": 8,
        "rollout.group_size": 4,
        "environments.world.train": 64,
        "environments.world.held_out": 16,
        "rollout.runners": 2,
        "rollout.resources": "{sandbox: 2}",
        "engine.resources": "{engine: 1}",
        "update.resources": "{rank: 1}",
        "policy.path": "/srv/run/model",
        "ray.address": f"{machines.address('a')}:{RAY_PORT}",
        "ray.forward": f"[{', '.join(machines.variables)}]",
        "storage.root": "s3://bucket/nbrl",
        **more,
    }


def flags(chosen: dict[str, object]) -> list[str]:
    return [part for key, value in chosen.items() for part in ("--set", f"{key}={value}")]


def command(machines: Machines, run: str, **more: object) -> list[str]:
    """A training that machine a leads, which alone has the model."""
    machines.on("a", "cp", "-rLT", f"{machines.checkout}/{TINY}", "/srv/run/model")
    return ["nbrl", "train", "tiny-cpu", "--run", run, *flags(settings(machines, **more))]


def train(machines: Machines, run: str, **more: object) -> subprocess.CompletedProcess[str]:
    return machines.on("a", *command(machines, run, **more), limit_s=900, **machines.variables)


def until_stored(machines: Machines, pattern: str, limit_s: float = 300) -> None:
    """Wait for an object whose key below nbrl/runs matches."""
    deadline = time.monotonic() + limit_s
    while not any((machines.bucket / "nbrl/runs").glob(pattern)):
        assert time.monotonic() < deadline, f"nothing is stored at {pattern}"
        time.sleep(0.1)


def stored(machines: Machines, key: str) -> Any:
    return json.loads((machines.bucket / "nbrl" / key).read_text())


def trajectories(machines: Machines, run: str) -> list[dict[str, Any]]:
    """All that were trained on or evaluated."""
    import pyarrow.parquet as pq

    folder = machines.bucket / "nbrl/runs" / run
    found = [row for path in sorted(folder.rglob("trajectories/*/*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert found, f"{run} has stored no trajectory"
    return found


def folder(machines: Machines, run: str) -> Path:
    return machines.bucket / "nbrl/runs" / run
