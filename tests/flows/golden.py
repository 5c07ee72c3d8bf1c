"""Digests of what a run computed: sampled tokens, rewards, advantages and weights of each iteration."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage
from tests.flows import made
from tests.flows.made import record

FILE = Path(__file__).with_name("golden.json")


def machine() -> str:
    """What the bits of a float depend on: the family of the processor, and torch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    said = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines if ":" in line)}
    return f"{said.get('vendor_id')} {said.get('cpu family')}/{said.get('model')}, torch {torch.__version__}"


def digests(storage: Storage, run: str, iterations: int) -> list[dict[str, str]]:
    """By iteration. The engine's log-probs are left out: they differ in their last bits with the batch they were computed in."""
    found = []
    for iteration in range(iterations):
        done = record(storage, run, iteration)
        trajectories = sorted(from_table(storage.read_table(done.rounds[0].trajectories.path)), key=lambda each: each.id)
        tokens = [(each.id, [node.token_ids for node in each.sampled()]) for each in trajectories]
        rewards = storage.read_table(done.rounds[0].rewards.path).sort_by("trajectory").to_pylist()
        advantages = storage.read_table(made.advantages(storage, run, iteration)).sort_by(
            [("trajectory", "ascending"), ("step", "ascending")]
        )
        weights = storage.read_bytes(f"{done.checkpoint}/hf/model.safetensors")
        found.append(
            {
                "tokens": _digest(tokens),
                "rewards": _digest([(row["trajectory"], row["step_rewards"]) for row in rewards]),
                "advantages": _digest(advantages.to_pylist()),
                "weights": hashlib.sha256(weights).hexdigest(),
            }
        )
    return found


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
