"""Whether the recipe's update fits beside its engine on a card of 80 GB, and what memory stays with the learner after it.

Another process holds what the engine would. On a larger card the learner may take no more than an H100 would leave it.
"""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from learner_step import SHAPES, make_model

from gpu.learner import l0_trajectories
from gpu.orders import make_learner, write_order
from gpu.probe import join
from gpu.row import Given, Row, forget, gib, peak_gib
from nbrl.tasks.learner.batch.batch import make_batch
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateOrder, read_tables
from nbrl.tasks.learner.step.train import train

ENGINE_GB = 28.0  # 0.35 of the card, as the recipe has it
CARD = 79.1 * 2**30  # what CUDA says an H100 of 80 GB has
HOLD = """
import sys, torch
held = torch.empty(int(sys.argv[1]), dtype=torch.uint8, device="cuda")
print("held", flush=True)
input()
"""


def measure(row: Row, given: Given) -> None:
    join(given)
    shape, model = "tiny" if given.tiny else "qwen3-0.6b", given.scratch / "model"
    row.add("model_made", lambda: make_model(SHAPES[shape], str(model), torch.bfloat16, given.device.type), needed=True)
    with engine(given):
        for name, recompute in (("whole activations", False), ("recompute", True)):
            row.add(f"{name} beside engine", lambda recompute=recompute: updated(given, model, shape, recompute))  # type: ignore[misc]
    row.add("whole activations alone", lambda: updated(given, model, shape, False))
    dist.destroy_process_group()


@contextmanager
def engine(given: Given) -> Iterator[None]:
    """Let another process hold the engine's memory, and this one have what is left of an H100."""
    if not given.cuda:
        yield
        return
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(int(ENGINE_GB * 1e9))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline().strip() == b"held"
        free, total = torch.cuda.mem_get_info()
        beyond = max(0.0, total - CARD)  # of a larger card
        torch.cuda.set_per_process_memory_fraction(min(1.0, (free + torch.cuda.memory_reserved() - beyond) / total))
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        holder.kill()
        holder.wait()


def updated(given: Given, model: Path, shape: str, recompute: bool) -> dict[str, Any]:
    """Return what the update of an order took, and what stays: held by tensors, reserved, and after the cache was given back."""
    learner = make_learner(
        given, model, dtype="bfloat16", lr=1e-6, weight_decay=0.01, kl_coefficient=0.001, tokens_per_micro_batch=20_000,
        activation_checkpointing=recompute,
    )  # fmt: skip
    order = write_order(given, l0_trajectories(given, shape), "out")
    found: dict[str, Any] = {"fits": True}
    try:
        update(learner, order)
    except torch.OutOfMemoryError as error:
        return {"fits": False, "peak_gib": peak_gib(), "why": str(error)[:600]}
    if given.cuda:
        found |= {"peak_gib": peak_gib(), "peak_reserved_gib": gib(torch.cuda.max_memory_reserved())}
        found |= {"held_gib": gib(torch.cuda.memory_allocated()), "reserved_gib": gib(torch.cuda.memory_reserved())}
        forget()
        found["reserved_after_empty_cache_gib"] = gib(torch.cuda.memory_reserved())
    return found


def update(learner: Learner, order: UpdateOrder) -> None:
    """Carry out the step of an order, and write nothing."""
    loaded, settings = learner._loaded, learner._settings
    assert loaded is not None
    batch = make_batch(read_tables(order, learner._storage), order, settings, learner._config)
    constants, _ = loaded.passes.compute_constants(batch, None)
    train(settings, loaded.passes, loaded.models, learner._timer, batch, constants, order.seed)
