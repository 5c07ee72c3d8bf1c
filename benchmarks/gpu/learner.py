"""Whole orders of the learner on one rank: the same numbers as on a CPU with each option, the same bits twice, and what the
phases of an order with Qwen3-0.6B take.

`moves_apart` is the largest over the parameters of |move - move on the CPU| / |move on the CPU| after the order, both in float32;
weights move by lr * gradient / (|gradient| + 1), so that this tells gradients apart. `logprobs_apart` is the largest
difference of log-probs of the proof under the new weights, in nats.
"""

import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from learner_step import SHAPES, make_model
from safetensors.torch import load_file

from gpu.orders import make_learner, make_trajectories, proved, weights, write_order
from gpu.probe import join
from gpu.row import Given, Row, figures, forget, gib, peak_gib
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult

EXACT: dict[str, Any] = {"lr": 0.1, "eps": 1.0, "weight_decay": 0.0, "grad_clip": 1e9, "kl_coefficient": 0.0}
GAE = AdvantageSettings(estimator="gae")
CPU = torch.device("cpu")
# Settings beside EXACT, and those that only a GPU takes.
OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "recompute": ({}, {"activation_checkpointing": True}),
    "reference": ({"kl_coefficient": 0.1}, {}),
    "reference and optimizer offloaded": ({"kl_coefficient": 0.1}, {"offload": ["optimizer", "reference"]}),
    "critic": ({"critic": {"lr": 0.1}}, {}),
    "critic, optimizer offloaded": ({"critic": {"lr": 0.1}}, {"offload": ["optimizer"]}),
    "gspo, two steps": ({"loss": {"kind": "gspo"}, "minibatches": 2}, {}),
    "lora with reference": ({"lora": {"rank": 4, "alpha": 8}, "kl_coefficient": 0.1}, {}),
    "masked trajectories": ({"tis": {"kind": "mask_trajectories", "high": 1e6}}, {}),
    "bfloat16": ({"dtype": "bfloat16"}, {}),
}


def measure(row: Row, given: Given) -> None:
    join(given)
    little = given.scratch / "little"
    make_model(SHAPES["tiny"], str(little), torch.float32)
    for name, (both, on_gpu) in OPTIONS.items():
        row.add(name, lambda name=name, both=both, on_gpu=on_gpu: beside_cpu(given, little, name, both, on_gpu))  # type: ignore[misc]
    row.add("bits", lambda: bits(given))
    row.add("order", lambda: orders(given))
    dist.destroy_process_group()


def beside_cpu(given: Given, model: Path, name: str, both: dict[str, Any], on_gpu: dict[str, Any]) -> dict[str, float]:
    """Return how far two orders in a row end from those of a learner on the CPU."""
    settings, found = EXACT | {"dtype": "float32", "tokens_per_micro_batch": 300} | both, {}
    trajectories = make_trajectories(SHAPES["tiny"]["vocab_size"], 2, 4, 3, 0.05)
    estimator = GAE if "critic" in both else None
    for device in (CPU, given.device):
        where = "cpu" if device is CPU else "gpu"
        learner = make_learner(given, model, device, **settings, **(on_gpu if device.type == "cuda" else {}))
        first, second = (f"{name}-{where}-{number}".replace(" ", "-") for number in range(2))
        order = {"dtype": "float32", "estimator": estimator}
        learner.execute(write_order(given, trajectories, first, **order))
        last = learner.execute(write_order(given, trajectories, second, iteration=1, checkpoint_in=first, **order))
        found[where] = (weights(given, last), last)
        del learner
    before = load_file(model / "model.safetensors")
    (on_cpu, expected), (there, result) = found["cpu"], found["gpu"]
    moves = {name: (on_cpu[name] - each, there[name] - each) for name, each in before.items()}
    apart = max(float((gpu - cpu).norm() / cpu.norm()) for cpu, gpu in moves.values() if float(cpu.norm()))
    logprobs = max(abs(one - other) for one, other in zip(proved(result), proved(expected), strict=True))
    return {
        "moves_apart": figures(apart, 2),
        "logprobs_apart": figures(logprobs, 2),
        "loss": figures(result.metrics["update/loss"], 6),
        "loss_on_cpu": figures(expected.metrics["update/loss"], 6),
        "grad_norm_ratio": figures(result.metrics["update/grad_norm"] / expected.metrics["update/grad_norm"], 7),
        "micro_batches": result.metrics["update/micro_batches"],
    }


def bits(given: Given) -> dict[str, object]:
    """Return whether an order gives the same bits twice, in processes of their own: the setting acts on the whole process."""
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        return {f"deterministic {on}": pool.submit(twice, given, on).result() for on in (True, False)}


def twice(given: Given, deterministic: bool) -> dict[str, object]:
    """Return whether weights and proof are the same bits: after an order that is carried out twice, and after the order that
    follows, by the same learner and by one that loads the checkpoint.
    """
    join(given)
    model, shape = given.scratch / f"small-{deterministic}", "tiny" if given.tiny else "small"
    make_model(SHAPES[shape], str(model), torch.bfloat16)
    trajectories = make_trajectories(SHAPES[shape]["vocab_size"], 2, 4, 3, 0.05 if given.tiny else 0.5)
    settings: dict[str, Any] = {"dtype": "bfloat16", "lr": 1e-4, "kl_coefficient": 0.01, "deterministic": deterministic}

    def order(learner: Learner, out: str, before: str | None = None) -> UpdateResult:
        more = {"iteration": 1, "checkpoint_in": before} if before else {}
        return learner.execute(write_order(given, trajectories, f"{out}-{deterministic}", dtype="float32", **more))

    first = make_learner(given, model, **settings)
    once = order(first, "once")
    goes_on = order(first, "goes-on", once.checkpoint)
    again = order(first, "again")
    loads = order(make_learner(given, model, **settings), "loads", once.checkpoint)
    same_as_before = first.execute(write_order(given, trajectories, f"once-{deterministic}", dtype="float32"))
    dist.destroy_process_group()
    return {
        "twice": same(given, once, again),
        "after_loading": same(given, goes_on, loads),
        "finished_order_is_answered": same_as_before == once,
        "moved": not same(given, once, goes_on),
    }


def same(given: Given, one: UpdateResult, other: UpdateResult) -> bool:
    left, right = weights(given, one), weights(given, other)
    return proved(one) == proved(other) and all(torch.equal(each, right[name]) for name, each in left.items())


def l0_trajectories(given: Given, shape: str) -> list[Trajectory]:
    """Return two groups of L0's lengths, with 21 000 unique tokens each."""
    sizes = (2, 2, 2, 0.02) if given.tiny else (2, 4, 8, 1.0)
    return make_trajectories(SHAPES[shape]["vocab_size"], *sizes)


def orders(given: Given) -> dict[str, Any]:
    """Return what the phases of three orders with the recipe qwen3-0.6b's settings take, and the size of a checkpoint."""
    shape, model = "tiny" if given.tiny else "qwen3-0.6b", given.scratch / "model"
    make_model(SHAPES[shape], str(model), torch.bfloat16, given.device.type)
    trajectories = l0_trajectories(given, shape)
    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "lr": 1e-6,
        "tokens_per_micro_batch": 20_000,
        "activation_checkpointing": True,
    }
    learner = make_learner(given, model, **settings)
    found: dict[str, Any] = {}
    found["first"], first = timed(learner, write_order(given, trajectories, "first"))
    second = {"iteration": 1, "checkpoint_in": first.checkpoint}
    found["second"], _ = timed(learner, write_order(given, trajectories, "second", **second))
    files = [path for path in (given.scratch / "first").rglob("*") if path.is_file()]
    found["checkpoint_gb"] = {
        part: figures(sum(path.stat().st_size for path in files if part in path.parts) / 1e9) for part in ("state", "hf")
    }
    del learner
    forget()
    shutil.rmtree(given.scratch / "second")
    third = write_order(given, trajectories, "third", **second)
    found["second_after_loading"], _ = timed(make_learner(given, model, **settings), third)
    return found


def timed(learner: Learner, order: UpdateOrder) -> tuple[dict[str, Any], UpdateResult]:
    """Return the figures of an order; `wall_s` counts its manifest, too, which its own seconds cannot."""
    began = time.perf_counter()
    result = learner.execute(order)
    return reported(result) | {"wall_s": figures(time.perf_counter() - began)}, result


def reported(result: UpdateResult) -> dict[str, Any]:
    wanted = (
        "update/loss",
        "update/grad_norm",
        "update/kl",
        "update/micro_batches",
        "update/forwarded_tokens",
        "update/unique_tokens",
    )
    found = {name.removeprefix("update/"): figures(result.metrics[name], 5) for name in wanted if name in result.metrics}
    seconds = {
        name.removeprefix("seconds/"): figures(each) for name, each in result.metrics.items() if name.startswith("seconds/")
    }
    reserved = gib(torch.cuda.memory_reserved()) if torch.cuda.is_available() else None
    return found | {"seconds": seconds, "peak_gib": peak_gib(), "reserved_gib": reserved, "skipped": result.skipped}
