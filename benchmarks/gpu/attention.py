"""The learner's attention on trees, compiled, against dense attention in float64: numbers, compilations and seconds.

`apart` is the largest over trees of |found - dense| / |dense|, norms of the whole tensor, for the output and the gradients of
query, key and value. The inputs of both are the same numbers, rounded to the dtype of the kernel.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context

import numpy as np
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

from gpu.probe import median_s, wait
from gpu.row import Given, Row, figures
from nbrl.tasks.learner.arrays import Ints
from nbrl.tasks.learner.attention.gpu import BlockAttention
from nbrl.tasks.learner.attention.tree_attention import tree_mask

LENGTHS = (1200, 1, 1000, 100, 128, 129, 256, 3000, 2048, 5000)
LONG = 20_000
GROUPS = 2


@dataclass(frozen=True)
class Heads:
    """Size of a head, query heads of each key-value head, and the dtype."""

    size: int
    shared: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.size} x {self.shared} {self.dtype}"


FIRST = Heads(128, 2, "bfloat16")  # those of Qwen3-0.6B
OTHERS = [
    *(Heads(128, shared, "bfloat16") for shared in (4, 7)),
    *(Heads(size, 4, "bfloat16") for size in (16, 32, 64, 80, 96)),
    *(Heads(64, shared, "bfloat16") for shared in (2, 7)),
    *(Heads(size, shared, "float32") for size, shared in ((16, 2), (64, 7), (128, 2))),
]
TINY = [Heads(16, 4, "bfloat16"), Heads(32, 7, "float32")]


def measure(row: Row, given: Given) -> None:
    row.add("first", lambda: {str(FIRST): compared(given, FIRST)})
    row.add("long_tree", lambda: long_tree(given))
    row.add("others", lambda: others(given))
    row.add("milliseconds", lambda: milliseconds(given))


def tree(tokens: int, seed: int = 0) -> Ints:
    """Return `end_T` of a random tree: a run, then up to four branches, each of which is such a tree."""
    draw = np.random.default_rng(seed)
    end_T = np.zeros(tokens, dtype=np.int64)
    ranges = [(0, tokens)]
    while ranges:
        start, stop = ranges.pop()
        run = min(stop, start + int(draw.integers(1, 2 + (stop - start) // 2)))
        end_T[start:run] = stop
        cuts = np.unique(draw.integers(run, stop, 3)) if stop - run > 8 else np.array([], dtype=np.int64)
        bounds = sorted({run, *cuts.tolist(), stop})
        ranges += [(first, last) for first, last in pairwise(bounds)]
    return end_T


def compared(given: Given, heads: Heads) -> dict[str, object]:
    """Return how far the kernel is from dense attention on trees of many lengths, and what it took to compile."""
    counters.clear()
    found: dict[str, float] = {}
    first_s = 0.0
    for number, tokens in enumerate(LENGTHS[:5] if given.tiny else LENGTHS):
        end_T = tree(tokens, number)
        began = time.perf_counter()
        got = results(given, heads, end_T)
        first_s = first_s or time.perf_counter() - began
        for name, error in distances(got, dense(given, heads, end_T)).items():
            found[name] = max(found.get(name, 0.0), error)
        query, key, value, _ = inputs(given, heads, tokens)
        with torch.no_grad():
            out = tree_mask(end_T, given.device).attend(query, key, value, 0.1)
        found["without_gradients"] = max(found.get("without_gradients", 0.0), distance(out.double(), got["out"].double()))
    return {
        "apart": {name: figures(error, 2) for name, error in found.items()},
        "graphs": counters["stats"]["unique_graphs"],
        "first_s": figures(first_s),
    }


def others(given: Given) -> dict[str, dict[str, object]]:
    """Return the same of other heads, each in a process of its own and several at once, so that their seconds are not alone."""
    wanted = TINY if given.tiny else OTHERS
    with ProcessPoolExecutor(2 if given.tiny else len(wanted), get_context("spawn"), max_tasks_per_child=1) as pool:
        return {str(heads): found for heads, found in zip(wanted, pool.map(kept, [given] * len(wanted), wanted), strict=True)}


def kept(given: Given, heads: Heads) -> dict[str, object]:
    """Return what `compared` does, or the error that it raised."""
    try:
        return compared(given, heads)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:600]}


def long_tree(given: Given) -> dict[str, float]:
    end_T = tree(300 if given.tiny else LONG)
    found = distances(results(given, FIRST, end_T), dense(given, FIRST, end_T))
    return {"tokens": len(end_T)} | {name: figures(error, 2) for name, error in found.items()}


def milliseconds(given: Given) -> dict[str, dict[str, float]]:
    """Return the median of forward and of backward for Qwen3-0.6B's 16 heads: on one path, on a tree, and by torch's causal
    attention on the path.
    """
    tokens = 256 if given.tiny else LONG
    heads = Heads(128, 2, "bfloat16")
    query, key, value, grad = inputs(given, heads, tokens, groups=8)
    chain, branched = tree_mask(np.full(tokens, tokens), given.device), tree_mask(tree(tokens), given.device)

    def causal() -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.1, enable_gqa=True)

    ways = {
        "path": lambda: chain.attend(query, key, value, 0.1),
        "tree": lambda: branched.attend(query, key, value, 0.1),
        "torch_causal": causal,
    }
    found = {}
    for name, forward in ways.items():
        upstream = grad.transpose(1, 2) if name == "torch_causal" else grad
        found[name] = both_ways(given, forward, (query, key, value), upstream)
    return found


def both_ways(given: Given, forward: Callable[[], Tensor], leaves: Sequence[Tensor], upstream: Tensor) -> dict[str, float]:
    forward_s = median_s(given, forward)
    both_s = median_s(given, lambda: torch.autograd.grad(forward(), leaves, upstream))
    return {"forward": figures(1000 * forward_s), "backward": figures(1000 * (both_s - forward_s))}


def inputs(given: Given, heads: Heads, tokens: int, groups: int = GROUPS) -> list[Tensor]:
    """Return query, key and value as a model's projections lay them out, and the gradient of the output."""
    draw = torch.Generator(given.device).manual_seed(tokens)
    dtype: torch.dtype = getattr(torch, heads.dtype)
    made = [
        torch.randn(1, tokens, count, heads.size, generator=draw, device=given.device).to(dtype)
        for count in (groups * heads.shared, groups, groups, groups * heads.shared)
    ]
    return [each.transpose(1, 2).requires_grad_() for each in made[:3]] + made[3:]


def results(given: Given, heads: Heads, end_T: Ints) -> dict[str, Tensor]:
    """Return the output and the gradients of the learner's attention."""
    query, key, value, grad = inputs(given, heads, len(end_T))
    mask = tree_mask(end_T, given.device)
    assert isinstance(mask, BlockAttention) == given.cuda
    out = mask.attend(query, key, value, 0.1)
    grads = torch.autograd.grad(out, (query, key, value), grad)
    wait(given)
    return dict(zip(("out", "query", "key", "value"), (out.detach(), *grads), strict=True))


def dense(given: Given, heads: Heads, end_T: Ints) -> dict[str, Tensor]:
    """Return the same in float64 from all scores, one query head at a time."""
    query_1HTD, key_1GTD, value_1GTD, grad_1THD = (each.detach().double() for each in inputs(given, heads, len(end_T)))
    index, end = torch.arange(len(end_T), device=given.device), torch.from_numpy(end_T).to(given.device)
    hidden_QK = ~((index <= index[:, None]) & (index[:, None] < end))
    found = {"out": torch.zeros_like(grad_1THD), "query": torch.zeros_like(query_1HTD)}
    found |= {"key": torch.zeros_like(key_1GTD), "value": torch.zeros_like(value_1GTD)}
    for head in range(query_1HTD.shape[1]):
        group = head // heads.shared
        query, key, value = (each.clone() for each in (query_1HTD[0, head], key_1GTD[0, group], value_1GTD[0, group]))
        with trained(query, key, value):
            scores_QK = (0.1 * query @ key.T).masked_fill_(hidden_QK, float("-inf"))
            out = scores_QK.softmax(1) @ value
            grads = torch.autograd.grad(out, (query, key, value), grad_1THD[0, :, head])
        found["out"][0, :, head] = out.detach()
        found["query"][0, head] = grads[0]
        found["key"][0, group] += grads[1]
        found["value"][0, group] += grads[2]
    return found


@contextmanager
def trained(*tensors: Tensor) -> Iterator[None]:
    for each in tensors:
        each.requires_grad_()
    yield


def distances(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    return {name: distance(found[name].double(), each) for name, each in expected.items()}


def distance(found: Tensor, expected: Tensor) -> float:
    """Return |found - expected| / |expected|, where numbers nearer to 0 than 0.01 on average count as that: a single token's
    scores have no gradient. Raises RuntimeError where one of them is not finite.
    """
    least = 1e-2 * expected.numel() ** 0.5
    error = float(torch.linalg.norm(found - expected) / torch.linalg.norm(expected).clamp(min=least))
    if not np.isfinite(error):
        raise RuntimeError("the attention gave numbers that are not finite")
    return error
