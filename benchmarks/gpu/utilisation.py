"""How much of the GPU's peak a step of the learner reaches, how much memory it takes, and what costs or would save time.

Sequences and operations are those of learner_step.py, which counts what is computed again in the backward pass for nothing.
"""

import statistics
from argparse import Namespace
from typing import Any

import torch
import torch.distributed as dist
from learner_step import SHAPES, Ours, Sequence, clock, make_model, make_sequences, utilisation
from torch._dynamo.utils import counters
from torch.profiler import ProfilerActivity, profile

from gpu.probe import join
from gpu.row import Given, Row, figures, peak_gib
from nbrl.tasks.learner.attention.cpu import SegmentAttention
from nbrl.tasks.learner.attention.gpu import BlockAttention

KERNELS = 15  # of the profile


def measure(row: Row, given: Given) -> None:
    join(given)
    little, large = ("tiny", "tiny") if given.tiny else ("qwen3-0.6b", "qwen3-4b")
    folder = str(given.scratch / "model")
    row.add("model_made", lambda: make_model(SHAPES[little], folder, torch.bfloat16, given.device.type), needed=True)
    for tokens, recompute in ((20_000, False), (8192, False), (4096, False), (20_000, True)):
        name = f"{little} {tokens}{' recompute' * recompute}"
        row.add(name, lambda tokens=tokens, recompute=recompute: alone(given, folder, little, tokens, recompute))  # type: ignore[misc]
    row.add("profile", lambda: profiled(given, folder, little))
    for tokens in (20_000, 8192):
        for way in ("eager", "apart", "inside") if given.cuda else ("eager", "apart"):
            name = f"layers {way} {tokens}"
            row.add(name, lambda tokens=tokens, way=way: with_layers(given, folder, little, tokens, way))  # type: ignore[misc]
    row.add(f"{large} made", lambda: make_model(SHAPES[large], folder, torch.bfloat16, given.device.type))
    row.add(f"{large} 8192 recompute", lambda: alone(given, folder, large, 8192, True, rounds=1))
    dist.destroy_process_group()


def lengths(given: Given) -> dict[str, int]:
    """Return how many sequences there are, 40 000 tokens in all, and their mean lengths."""
    return {"sequences": 3, "prompt": 12, "sampled": 20} if given.tiny else {"sequences": 20, "prompt": 1500, "sampled": 500}


def sequences(given: Given, shape: str) -> list[Sequence]:
    each = lengths(given)
    return make_sequences(each["sequences"], each["prompt"], each["sampled"], SHAPES[shape]["vocab_size"])


def alone(given: Given, folder: str, shape: str, tokens: int, recompute: bool, rounds: int = 3) -> dict[str, object]:
    settings = {"shape": shape, "tokens": tokens, "rounds": rounds, "peak_tflops": None, "activation_checkpointing": recompute}
    found = utilisation(Namespace(**settings, **lengths(given)), folder)
    return found | {"tokens_per_micro_batch": tokens}


def step_s(ours: Ours, work: list[Sequence]) -> float:
    began = clock()
    ours.step(work)
    return clock() - began


def profiled(given: Given, folder: str, shape: str) -> dict[str, Any]:
    """Return what the kernels of one step took, the longest first, and the share of the step in which any ran."""
    work = sequences(given, shape)
    ours = Ours(folder, given.device, "bfloat16", 20_000)
    ours.step(work)
    seconds = step_s(ours, work)
    with profile(activities=[ProfilerActivity.CUDA if given.cuda else ProfilerActivity.CPU]) as profiler:
        ours.step(work)
    took = {
        each.key: (each.self_device_time_total if given.cuda else each.self_cpu_time_total, each.count)
        for each in profiler.key_averages()
    }
    total = sum(time for time, _ in took.values())
    longest = sorted(took.items(), key=lambda each: -each[1][0])[:KERNELS]
    return {
        "step_s": figures(seconds),
        "kernels_s": figures(total / 1e6),
        "kernels": [
            {"name": name[:90], "ms": figures(time / 1000), "count": count, "share": figures(time / total)}
            for name, (time, count) in longest
        ],
        "launches": sum(count for _, count in took.values()),
    }


def with_layers(given: Given, folder: str, shape: str, tokens: int, way: str) -> dict[str, Any]:
    """Return the seconds of a step with its decoder layers as they are, compiled with the attention inside, or apart from it."""
    work = sequences(given, shape)
    ours = Ours(folder, given.device, "bfloat16", tokens)
    mask = BlockAttention if given.cuda else SegmentAttention
    attend = mask.attend
    counters.clear()
    try:
        if way == "apart":
            mask.attend = torch.compiler.disable(attend)  # type: ignore[method-assign]
        if way != "eager":
            for layer in ours.policy.lm.base_model.layers:
                layer.forward = torch.compile(layer.forward, dynamic=True, backend="inductor" if given.cuda else "eager")
        first_s, loss = step_s(ours, work), ours.step(work)
        seconds = [step_s(ours, work) for _ in range(3)]
    finally:
        mask.attend = attend  # type: ignore[method-assign]
    return {
        "step_s": figures(statistics.median(seconds)),
        "first_s": figures(first_s),
        "peak_gib": peak_gib(),
        "loss": figures(loss, 6),
        "graphs": counters["stats"]["unique_graphs"],
    }
