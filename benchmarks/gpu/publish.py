"""What is published is what the GPU holds: the export against the learner's weights, and the engine's comparison on the GPU."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from learner_step import SHAPES, clock, make_model
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from gpu.learner import l0_trajectories
from gpu.orders import make_learner, weights, write_order
from gpu.probe import join
from gpu.row import Given, Row, figures
from nbrl.infra.engine.environment import equality
from nbrl.tasks.learner.checkpoint.buckets import Buckets


def measure(row: Row, given: Given) -> None:
    join(given)
    shape, model = "tiny" if given.tiny else "small", given.scratch / "model"
    row.add("model_made", lambda: make_model(SHAPES[shape], str(model), torch.bfloat16, given.device.type), needed=True)
    row.add("nearest", lambda: exported(given, model, shape, "nearest"))
    row.add("comparison", lambda: comparison(given, given.scratch / "nearest" / "hf"))
    row.add("buckets", lambda: buckets(given, given.scratch / "nearest" / "hf"))
    dist.destroy_process_group()


def exported(given: Given, model: Path, shape: str, name: str) -> dict[str, Any]:
    """Return how many of the learner's weights the export has as the nearest numbers of bfloat16."""
    settings: dict[str, Any] = {"dtype": "bfloat16", "lr": 1e-5, "kl_coefficient": 0.0, "activation_checkpointing": True}
    learner = make_learner(given, model, **settings, tokens_per_micro_batch=20_000)
    result = learner.execute(write_order(given, l0_trajectories(given, shape), name))
    found, before = weights(given, result), load_file(model / "model.safetensors")
    assert learner._loaded is not None
    held = {name: whole(each) for name, each in learner._loaded.policy.lm.named_parameters()}
    counts = dict.fromkeys(("numbers", "nearest", "changed"), 0)
    for name, weight in held.items():
        there = found[name].to(weight.device)
        counts["numbers"] += weight.numel()
        counts["nearest"] += int((there == weight.bfloat16()).sum())
        counts["changed"] += int((there != before[name].to(weight.device)).sum())
    return {"same_names": held.keys() == found.keys()} | counts


def whole(weight: Tensor) -> Tensor:
    detached = weight.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def comparison(given: Given, folder: Path) -> dict[str, Any]:
    """Return what the engine's comparison says of a model on the GPU that loaded the export, before and after one bit changes."""
    lm: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    lm.to(given.device)
    parameters = dict(lm.named_parameters())

    def load_weights(tensors: Iterable[tuple[str, Tensor]]) -> None:
        for name, tensor in tensors:
            parameters[name].data.copy_(tensor)

    lm.load_weights = load_weights
    began = clock()
    equal = equality.compared(lm, equality._tensors(folder), str(folder))
    seconds = clock() - began
    parameters["model.norm.weight"].data.view(torch.int16)[3] ^= 1
    other = equality.compared(lm, equality._tensors(folder), str(folder))
    names = ("equal", "different", "unproved", "why")
    return {
        "as_loaded": {name: equal[name] for name in names},
        "one_bit": {name: other[name] for name in names},
        "s": figures(seconds),
    }


def buckets(given: Given, folder: Path) -> dict[str, Any]:
    """Return whether what rank 0 would send from the GPU are the bytes of the files, and how fast it fills its buckets."""
    made, found = Buckets(folder), load_file(folder / "model.safetensors")
    equal, count = True, 0
    began = clock()
    for bucket, filled in zip(made.all, made.filled(given.device), strict=True):
        expected = torch.cat([found[name].flatten().view(torch.uint8) for name in bucket.names])
        equal, count = equal and torch.equal(filled.cpu(), expected), count + filled.numel()
    return {"equal": equal, "bytes": count, "buckets": len(made.all), "s_with_comparison": figures(clock() - began)}
