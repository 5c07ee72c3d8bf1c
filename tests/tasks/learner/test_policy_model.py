"""Exactness of packed trees: log-probs, loss and gradients equal those of one plain sequence a step."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.learner.attention.tree_attention import NAME as TREE
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.losses.losses import policy_gradient
from nbrl.tasks.learner.model.policy_model import PolicyModel
from tests.tasks.learner import update_lab

relaxed = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(policy: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(policy, dtype=dtype, attn_implementation=attention).eval()


def naive_logprobs(lm: PreTrainedModel, trajectory: Trajectory) -> torch.Tensor:
    """One unpadded sequence a step, in the order of the steps."""
    parts = []
    for index, node in enumerate(trajectory.nodes):
        if node.kind == "sampled":
            ids = torch.tensor([trajectory.path(index)])
            logprobs = torch.log_softmax(lm(input_ids=ids).logits[0], dim=-1)
            count = len(node.token_ids)
            parts.append(logprobs[-count - 1 : -1].gather(1, torch.tensor(node.token_ids)[:, None])[:, 0])
    return torch.cat(parts)


def tree_logprobs(lm: PreTrainedModel, trajectories: list[Trajectory]) -> torch.Tensor:
    examples = update_lab.examples(trajectories)
    micro = to_device(Forest(examples).pack(), torch.device("cpu"))
    result: torch.Tensor = PolicyModel(lm)(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N)
    return result


@pytest.mark.more
@relaxed
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4))
def test_logprobs_in_float32(policy: Path, seed: int, count: int) -> None:
    trajectories = update_lab.make_trajectories(seed, count)
    with torch.no_grad():
        expected = torch.cat([naive_logprobs(load(policy, torch.float32, "eager"), each) for each in trajectories])
        found = tree_logprobs(load(policy, torch.float32, TREE), trajectories)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@relaxed
@given(seed=st.integers(0, 10**6))
def test_loss_and_every_gradient_in_float64(policy: Path, seed: int) -> None:
    trajectories = update_lab.make_trajectories(seed, 3)
    losses, gradients = [], []
    for kind in (TREE, "sdpa"):
        lm = load(policy, torch.float64, kind)
        logp = tree_logprobs(lm, trajectories) if kind == TREE else torch.cat([naive_logprobs(lm, each) for each in trajectories])
        advantage = torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 1.5, len(logp)))  # one sign: nothing cancels
        loss = policy_gradient(logp, advantage).sum() / len(logp)
        loss.backward()
        losses.append(loss.detach())
        gradients.append({name: parameter.grad for name, parameter in lm.named_parameters()})
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)
    for name, expected in gradients[1].items():
        assert torch.linalg.norm(gradients[0][name] - expected) <= 1e-6 * torch.linalg.norm(expected), name


@pytest.mark.parametrize("architecture", ["Llama", "Qwen2", "Mistral"])
def test_other_architectures_run_unmodified(tmp_path: Path, architecture: str) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=update_lab.VOCAB, num_key_value_heads=1, initializer_range=0.2, sliding_window=None, **sizes
    )
    torch.manual_seed(1)
    getattr(transformers, f"{architecture}ForCausalLM")(config).save_pretrained(tmp_path)
    trajectories = update_lab.make_trajectories(4)
    with torch.no_grad():
        expected = torch.cat([naive_logprobs(load(tmp_path, torch.float32, "eager"), each) for each in trajectories])
        found = tree_logprobs(load(tmp_path, torch.float32, TREE), trajectories)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
