"""The gradient of trees against that of single sequences, as tree_update.py has it, at the lengths of L0 and with many layers.

`halved` is how far gradients in bfloat16 are from that of single sequences in float32, as norms of the whole gradient: the tree's
and that of single sequences. Trees may be no farther than sequences, up to chance.
"""

from argparse import Namespace

import torch
import tree_update
from tree_update import NAME, Gradients, make_group, make_model, measured, sequence_loss, tree_loss

from gpu.row import Given, Row, figures


def measure(row: Row, given: Given) -> None:
    for dtype in ("float32", "bfloat16"):
        row.add(dtype, lambda dtype=dtype: tree_update.measure(settings(given, dtype)))  # type: ignore[misc]
    row.add("halved", lambda: halved(settings(given, "float32")))


def settings(given: Given, dtype: str) -> Namespace:
    sizes = (
        {"scale": 0.02, "layers": 1, "rollouts": 2, "steps": 2}
        if given.tiny
        else {"scale": 1.0, "layers": 28, "rollouts": 4, "steps": 8}
    )
    return Namespace(**sizes, rounds=1 if given.tiny else 3, budget=1_000_000, rows=4, threads=1, dtype=dtype)


def halved(given: Namespace) -> dict[str, float]:
    full, half = make_model(given.layers), make_model(given.layers, "bfloat16")
    examples = make_group(given.rollouts, given.steps, given.scale, full.config.vocab_size)
    exact = measured(full, "sdpa", lambda: sequence_loss(full, examples, 1))[3]
    found = {
        "tree": measured(half, NAME, lambda: tree_loss(half, examples, given.budget))[3],
        "per_step": measured(half, "sdpa", lambda: sequence_loss(half, examples, 1))[3],
    }
    return {name: figures(distance(gradients, exact), 2) for name, gradients in found.items()}


def distance(found: Gradients, exact: Gradients) -> float:
    apart = sum(float((found[name].double() - each.double()).square().sum()) for name, each in exact.items())
    return float((apart / sum(float(each.double().square().sum()) for each in exact.values())) ** 0.5)


assert torch.get_float32_matmul_precision() == "highest"  # else float32 would be TF32
