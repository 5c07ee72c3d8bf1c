"""Exactness under any cut: loss and gradients over all ranks and micro-batches equal those of one plain sequence a step."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.learner.attention.tree_attention import NAME as TREE
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.partition import Cost, cost_of, partition
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.losses.losses import gspo, policy_gradient
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.learner.settings import GspoLoss
from tests.tasks.learner import update_lab

relaxed = settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
DTYPES = {"float64": (torch.float64, 1e-6), "float32": (torch.float32, 1e-5)}


def make_group(seed: int, count: int) -> list[Trajectory]:
    """Trajectories with a prompt in common, and two that begin with the same action."""
    trajectories = update_lab.make_trajectories(seed, count)
    for each in trajectories:
        each.nodes[:2] = trajectories[0].nodes[:2]
    if count > 1:
        trajectories[1].nodes[2:6] = trajectories[0].nodes[2:6]
    return trajectories


def load(policy: Path, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(policy, dtype=dtype, attn_implementation=attention).eval()


class Loss:
    """The loss of a part of a batch: its numbers of tokens, and log-probs of them."""

    def __init__(self, kind: Literal["policy_gradient", "gspo"], forest: Forest) -> None:
        self._kind, self._count = kind, forest.targets
        self._advantage = torch.from_numpy(np.random.default_rng(0).uniform(0.5, 1.5, forest.targets))  # nothing cancels
        self._action = torch.from_numpy(Targets.of(forest).action_N)

    def __call__(self, index: torch.Tensor, logp: torch.Tensor) -> torch.Tensor:
        advantage = self._advantage[index].to(logp.dtype)
        if self._kind == "policy_gradient":
            return policy_gradient(logp, advantage).sum() / self._count
        old = logp.detach() - 0.1
        loss, _ = gspo(logp, old, advantage, self._action[index], GspoLoss(kind="gspo", clip_high=1.0))
        return loss.sum() / self._count


def gradients(lm: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: each.grad for name, each in lm.named_parameters() if each.grad is not None}


@relaxed
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4),
    ranks=st.integers(1, 3),
    budget=st.sampled_from([1, 25, 40, 60, 100, 1000]),
    dtype=st.sampled_from(["float64", "float32"]),
    kind=st.sampled_from(["policy_gradient", "gspo"]),
)
def test_loss_and_every_gradient(
    policy: Path, seed: int, count: int, ranks: int, budget: int, dtype: str, kind: Literal["policy_gradient", "gspo"]
) -> None:
    exact, error = DTYPES[dtype]
    trajectories = make_group(seed, count)
    forest = Forest(update_lab.examples(trajectories))
    loss_of = Loss(kind, forest)
    naive = load(policy, exact, "sdpa")  # the eager one rounds its softmax to float32
    logp = torch.cat([part for each in trajectories for part in update_lab.action_logprobs(naive, each)])
    expected = loss_of(torch.arange(forest.targets), logp)
    expected.backward()
    tree = load(policy, exact, TREE)
    hands = partition(forest, range(len(forest.actions)), ranks, budget, cost_of(tree)).actions_by_rank
    found = 0.0
    for micro in (to_device(forest.pack(actions), torch.device("cpu")) for hand in hands for actions in hand):
        part = PolicyModel(tree)(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N, micro.target_N)
        loss = loss_of(micro.index_N, part)
        loss.backward()
        found += loss.item()
    assert found == pytest.approx(expected.item(), rel=error)
    assert gradients(tree).keys() == gradients(naive).keys()
    for name, each in gradients(naive).items():
        assert torch.linalg.norm(gradients(tree)[name] - each) <= error * torch.linalg.norm(each), name


def test_cost_counts_the_operations_of_a_model(policy: Path) -> None:
    cost = cost_of(load(policy, torch.float32, TREE))
    width, inner, layers, heads, groups, size = 64, 128, 2, 4, 2, 16
    weights = 2 * width * heads * size + 2 * width * groups * size + 3 * width * inner + 2 * width + 2 * size
    assert cost == Cost(2 * (layers * weights + width), 4 * layers * heads * size, 2 * width * update_lab.VOCAB)
