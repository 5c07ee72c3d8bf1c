"""Log-probs from slices of the vocabulary: against full logits, in how much is held at one time, and sharded."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import chain
from nbrl.tasks.learner.model import logprob
from nbrl.tasks.learner.model.load import load_sharded
from nbrl.tasks.learner.model.logprob import target_logprobs
from nbrl.tasks.learner.model.policy_model import PolicyModel
from tests.tasks.learner import update_lab


def made(seed: int, targets: int, vocabulary: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Hidden states and a weight that want gradients, targets, and the gradient from above."""
    draw = torch.Generator().manual_seed(seed)
    hidden_ND = torch.randn(targets, size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    weight_VD = torch.randn(vocabulary, size, generator=draw, dtype=torch.float64).to(dtype).requires_grad_()
    target_N = torch.randint(0, vocabulary, (targets,), generator=draw)
    return hidden_ND, weight_VD, target_N, torch.randn(targets, generator=draw, dtype=torch.float64)


def exactly(values: Tensor) -> Tensor:
    return values.detach().double().requires_grad_()


def full(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    return torch.log_softmax((hidden_ND @ weight_VD.T).to(torch.float64), dim=1).gather(1, target_N[:, None])[:, 0]


def gradients(logp_N: Tensor, grad_N: Tensor, *inputs: Tensor) -> list[Tensor]:
    return [each.double() for each in torch.autograd.grad(logp_N, inputs, grad_N.to(logp_N.dtype))]


@given(st.integers(0, 10**6), st.integers(0, 40), st.integers(1, 90), st.integers(1, 8), st.integers(1, 700))
def test_log_probs_and_gradients_are_those_of_full_logits(
    seed: int, targets: int, vocabulary: int, size: int, at_once: int
) -> None:
    for dtype, close in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        hidden_ND, weight_VD, target_N, grad_N = made(seed, targets, vocabulary, size, dtype)
        exact = exactly(hidden_ND), exactly(weight_VD)
        expected_N = full(*exact, target_N)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logprob, "LOGITS_AT_ONCE", {"cpu": at_once})
            found_N = target_logprobs(hidden_ND, weight_VD, target_N)
            found = gradients(found_N, grad_N, hidden_ND, weight_VD)
        assert found_N.dtype == dtype
        torch.testing.assert_close(found_N.double(), expected_N, rtol=close, atol=close)
        for each, wanted in zip(found, gradients(expected_N, grad_N, *exact), strict=True):
            assert torch.linalg.norm(each - wanted) <= close * (1 + torch.linalg.norm(wanted))


def test_bfloat16_is_as_near_to_exact_gradients_as_full_logits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", {"cpu": 1 << 12})
    hidden_ND, weight_VD, target_N, grad_N = made(0, 64, 500, 16, torch.bfloat16)
    exact = exactly(hidden_ND), exactly(weight_VD)
    expected = gradients(full(*exact, target_N), grad_N, *exact)
    found_N = target_logprobs(hidden_ND, weight_VD, target_N)
    assert found_N.dtype == torch.float32
    found = gradients(found_N, grad_N, hidden_ND, weight_VD)
    plain = gradients(full(hidden_ND, weight_VD, target_N), grad_N, hidden_ND, weight_VD)
    for ours, theirs, wanted in zip(found, plain, expected, strict=True):
        assert torch.linalg.norm(ours - wanted) <= 1.5 * torch.linalg.norm(theirs - wanted)


def test_a_likely_token_keeps_its_small_gradient_in_bfloat16() -> None:
    hidden_ND = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    weight_VD = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.bfloat16, requires_grad=True)
    target_logprobs(hidden_ND, weight_VD, torch.tensor([0])).backward()
    assert hidden_ND.grad is not None
    unlikely = 1 / (1 + torch.e**8)
    assert hidden_ND.grad[0, 0].item() == pytest.approx(unlikely, rel=1e-2)


class Largest(TorchDispatchMode):
    """The most numbers in any tensor that an operation gave, but for those of the weight's own shape."""

    def __init__(self, weight: torch.Size) -> None:
        super().__init__()
        self.weight, self.numbers = weight, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for each in out if isinstance(out, tuple | list) else (out,):
            if isinstance(each, Tensor) and each.shape not in (self.weight, self.weight[::-1]):
                self.numbers = max(self.numbers, each.numel())
        return out


@pytest.mark.parametrize("targets", [1, 7, 300])
def test_on_a_gpu_rows_of_logits_begin_at_whole_16_bytes(monkeypatch: pytest.MonkeyPatch, targets: int) -> None:
    """Whatever the number of targets; the last slice is what the vocabulary leaves. Log-probs do not change."""
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", {"cpu": 2001})
    monkeypatch.setattr(logprob, "WHOLE", {"cpu": logprob.WHOLE["cuda"]})
    hidden_ND, weight_VD, target_N, _ = made(2, targets, 1000, 4, torch.float64)
    parts = logprob._slices(hidden_ND, weight_VD)
    assert all(len(part_WD) * torch.bfloat16.itemsize % 16 == 0 for _, part_WD in parts)
    assert all(len(part_WD) == len(parts[0][1]) for _, part_WD in parts[:-1])
    assert torch.equal(torch.cat([part_WD for _, part_WD in parts]), weight_VD)
    torch.testing.assert_close(target_logprobs(hidden_ND, weight_VD, target_N), full(hidden_ND, weight_VD, target_N))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_pass_holds_more_logits_than_a_slice(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    at_once = 1 << 13
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", {"cpu": at_once})
    hidden_ND, weight_VD, target_N, grad_N = made(1, 256, 1000, 4, dtype)
    with Largest(weight_VD.shape) as seen:
        logp_N = target_logprobs(hidden_ND, weight_VD, target_N)
        forward = seen.numbers
        logp_N.backward(grad_N.to(logp_N.dtype))
    assert at_once / 2 < forward <= seen.numbers <= at_once
    with torch.no_grad(), Largest(weight_VD.shape) as seen:
        target_logprobs(hidden_ND, weight_VD, target_N)
    assert seen.numbers <= at_once
    with Largest(weight_VD.shape) as seen:
        full(hidden_ND, weight_VD, target_N)
    assert seen.numbers == 256 * 1000


def test_a_frozen_weight_gets_no_gradient() -> None:
    hidden_ND, weight_VD, target_N, grad_N = made(2, 20, 30, 4, torch.float64)
    expected = gradients(full(hidden_ND, weight_VD, target_N), grad_N, hidden_ND)
    found = gradients(target_logprobs(hidden_ND, weight_VD.detach(), target_N), grad_N, hidden_ND)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    target_logprobs(hidden_ND, weight_VD.detach(), target_N).sum().backward()
    assert hidden_ND.grad is not None
    assert weight_VD.grad is None


def test_an_output_layer_with_a_bias_is_refused() -> None:
    lm = Qwen2ForCausalLM(
        Qwen2Config(vocab_size=9, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2)
    )
    lm.lm_head = torch.nn.Linear(8, 9)
    with pytest.raises(UpdateError, match="not one matrix"):
        PolicyModel(lm)


IDS = [5, 9, 2, 77, 31, 8, 8, 120, 299, 0, 4]


def sharded_gradients(folder: Path) -> dict[str, Tensor]:
    """Of the sum of log-probs, the same on every rank, put together from the shards."""
    ranks = torch.distributed.get_world_size()
    policy_model = load_sharded(str(folder), torch.float64, init_device_mesh("cpu", (ranks,)))
    micro = to_device(chain(IDS), torch.device("cpu"))
    policy_model(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N).sum().backward()
    found = {}
    for name, parameter in policy_model.lm.named_parameters():
        assert isinstance(parameter.grad, DTensor)
        found[name] = parameter.grad.full_tensor() / ranks
    return found


@pytest.mark.more
@pytest.mark.process
@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_gradient_reaches_the_sharded_output_layer(tmp_path: Path, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprob, "LOGITS_AT_ONCE", {"cpu": 7 * len(IDS)})
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen2Config(vocab_size=update_lab.VOCAB, tie_word_embeddings=tied, num_key_value_heads=1, **sizes)
    Qwen2ForCausalLM(config).double().save_pretrained(tmp_path)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64, attn_implementation="sdpa").eval()
    ids = torch.tensor(IDS)
    full_logits = lm(input_ids=ids[None]).logits[0, :-1]
    torch.log_softmax(full_logits, dim=-1).gather(1, ids[1:, None]).sum().backward()
    for ranks in (1, 2):
        found = update_lab.on_ranks(ranks, sharded_gradients, tmp_path)
        for name, parameter in lm.named_parameters():
            assert parameter.grad is not None
            assert torch.linalg.norm(found[name] - parameter.grad) <= 1e-6 * torch.linalg.norm(parameter.grad), name
