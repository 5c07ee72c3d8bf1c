"""The attention of a tree against one dense mask over it: outputs and gradients."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import create_block_mask
from torch.nn.functional import scaled_dot_product_attention

from nbrl.tasks.learner.arrays import Ints
from nbrl.tasks.learner.attention import gpu, segments
from nbrl.tasks.learner.attention.cpu import SegmentAttention
from nbrl.tasks.learner.attention.gpu import BlockAttention, block_mask
from nbrl.tasks.learner.attention.segments import SMALL, plan
from nbrl.tasks.learner.attention.tree_attention import TreeMask, tree_mask
from nbrl.tasks.learner.batch.tree import Forest
from tests.tasks.learner import update_lab

HEADS, GROUPS, SIZE, SCALING = 6, 2, 16, 0.2
CPU = torch.device("cpu")


def a_tree(seed: int, count: int) -> Ints:
    trajectories = update_lab.make_trajectories(seed, count)
    examples = update_lab.examples(trajectories)
    return Forest(examples).pack().end_T


def inputs(tokens: int, dtype: torch.dtype, size: int = SIZE) -> list[Tensor]:
    """Query, key and value as a model's projections lay them out, and the gradient of the output."""
    draw = torch.Generator().manual_seed(tokens)
    heads = (HEADS, GROUPS, GROUPS, HEADS)
    made = [torch.randn(1, tokens, count, size, generator=draw, dtype=torch.float64).to(dtype) for count in heads]
    return [each.transpose(1, 2).requires_grad_() for each in made[:3]] + made[3:]


def results(
    attend: Callable[[Tensor, Tensor, Tensor, float], Tensor], tokens: int, dtype: torch.dtype, size: int = SIZE
) -> list[Tensor]:
    """The output and the gradients of query, key and value, in float64."""
    query, key, value, grad = inputs(tokens, dtype, size)
    out = attend(query, key, value, SCALING)
    assert out.dtype == dtype
    return [each.double() for each in (out.detach(), *torch.autograd.grad(out, (query, key, value), grad))]


def dense(end_T: Ints) -> Callable[[Tensor, Tensor, Tensor, float], Tensor]:
    end, index = torch.from_numpy(end_T), torch.arange(len(end_T))
    mask = (index <= index[:, None]) & (index[:, None] < end)

    def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2)

    return attend


def assert_near(found: list[Tensor], expected: list[Tensor], error: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert torch.linalg.norm(one - other) <= error * torch.linalg.norm(other)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([1, 16, SMALL]))
def test_segments_are_exact(seed: int, count: int, small: int) -> None:
    end_T = a_tree(seed, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SMALL", small)
        split: TreeMask = SegmentAttention(plan(end_T))
    expected = results(dense(end_T), len(end_T), torch.float64)
    assert_near(results(split.attend, len(end_T), torch.float64), expected, 1e-13)
    assert_near(results(split.attend, len(end_T), torch.float32), expected, 2e-6)
    assert_near(results(split.attend, len(end_T), torch.bfloat16), expected, 2e-2)


def test_a_gradient_that_is_one_number_everywhere() -> None:
    end_T = a_tree(0, 3)
    query, key, value, _ = inputs(len(end_T), torch.float64)
    found = torch.autograd.grad(tree_mask(end_T, CPU).attend(query, key, value, SCALING).sum(), (query, key, value))
    expected = torch.autograd.grad(dense(end_T)(query, key, value, SCALING).sum(), (query, key, value))
    assert_near(list(found), list(expected), 1e-12)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from([4, 16, 128]))
def test_block_mask_is_that_of_the_definition(seed: int, count: int, block: int) -> None:
    end_T = a_tree(seed, count)
    end_P = np.concatenate([end_T, np.arange(len(end_T) + 1, len(end_T) + 1 + -len(end_T) % block)])
    end = torch.from_numpy(end_P)

    def visible(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i < end[j])

    size = len(end_P)
    expected = create_block_mask(visible, None, None, size, size, device="cpu", BLOCK_SIZE=block)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "BLOCK", block)
        found = block_mask(end_P, CPU)
    assert found.shape == expected.shape
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.to_dense(), expected.to_dense())


@pytest.fixture
def trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch refuses the CPU's backward pass of FlexAttention; the rule is lifted, what is computed is torch's own."""
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.usefixtures("trains_on_the_cpu")
@pytest.mark.parametrize("block", [16, pytest.param(128, marks=pytest.mark.more)])
@pytest.mark.parametrize("size", [8, SIZE])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_blocks_give_the_output_and_the_gradients_of_segments(
    block: int, size: int, dtype: torch.dtype, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "BLOCK", block)
    for seed in range(5):
        end_T = a_tree(seed, 1 + seed % 4)
        found = results(BlockAttention(end_T, CPU).attend, len(end_T), dtype, size)
        assert_near(found, results(tree_mask(end_T, CPU).attend, len(end_T), dtype, size), error)


@pytest.mark.more
@pytest.mark.usefixtures("trains_on_the_cpu")
def test_two_compilations_serve_trees_of_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without gradients; torch ends a run that asks for more than eight.

    The first tree must not have as many blocks as there are heads: torch takes that for more than chance, and compiles again.
    """
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    kernel = gpu.compiled.__wrapped__()
    with torch._dynamo.config.patch(recompile_limit=2):
        for length in (300, 5, 128, 1000, 256, 77, 512, 131):
            end_T = np.full(length, length)
            end_T[length // 2 : length * 3 // 4] = length * 3 // 4
            blocks = BlockAttention(end_T, CPU)
            monkeypatch.setattr(blocks, "_kernel", kernel)
            expected = results(tree_mask(end_T, CPU).attend, length, torch.float32)
            assert_near(results(blocks.attend, length, torch.float32), expected, 2e-6)
            with torch.no_grad():
                query, key, value = inputs(length, torch.float32)[:3]
                out = blocks.attend(query, key, value, SCALING)
            assert_near([out.double()], expected[:1], 2e-6)
