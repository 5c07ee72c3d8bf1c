"""L0's bi-level advantages: two trajectories of two steps, gamma = lambda = 1, whitened over the four steps."""

import numpy as np
import pytest

from nbrl.agent.trajectory import ROOT, Node
from nbrl.tasks.advantage.estimate import discounted_returns, gae, reinforce_pp, whiten
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.step.estimates import make
from tests.tasks.learner import update_lab

REWARDS = [[0.5, 1.0], [0.2, 1.0]]
VALUES = [[1.0, 2.0], [3.0, 4.0]]


def test_the_return_of_the_first_step() -> None:
    assert discounted_returns(REWARDS[0], 1.0)[0] == pytest.approx(1.5)
    advantages = gae(REWARDS[0], VALUES[0], 1.0, 1.0)
    assert advantages[0] + VALUES[0][0] == pytest.approx(1.5)


def test_step_gae_and_broadcast() -> None:
    raw = [gae(rewards, values, 1.0, 1.0) for rewards, values in zip(REWARDS, VALUES, strict=True)]
    assert whiten(raw)[0][0] == pytest.approx(1.2430, abs=5e-5)


def test_reinforce_pp_and_broadcast() -> None:
    assert reinforce_pp(REWARDS, 1.0)[0][0] == pytest.approx(1.3754, abs=5e-5)


@pytest.mark.parametrize(("settings", "first"), [({"estimator": "gae", "lam": 1.0}, 1.2430), ({}, 1.3754)])
def test_every_token_of_a_step_gets_it_in_the_learner(settings: dict, first: float) -> None:
    def sampled(step: int) -> Node:
        return Node(parent=0, kind="sampled", step=step, token_ids=[2, 3], logprobs=[-0.5, -0.5])

    steps = [dict(enumerate(rewards)) for rewards in REWARDS]
    nodes = [Node(parent=ROOT, kind="system", step=-1, token_ids=[1]), sampled(0), sampled(1)]
    forest = Forest([update_lab.example(str(number), nodes, each) for number, each in enumerate(steps)])
    batch = Batch(forest, ["0", "1"], ["g", "g"], list(steps), ["a", "a"])
    estimator = AdvantageSettings.model_validate({"gamma": 1.0} | settings)
    values = np.array([[value, 99.0] for each in VALUES for value in each]).ravel()  # only the first token's value counts
    made = make(batch, Targets.of(forest), estimator, None, values if estimator.with_critic else None)
    assert made.advantage_N[:2].tolist() == pytest.approx([first, first], abs=5e-5)


@pytest.mark.parametrize("settings", [{"estimator": "bilevel_gae", "lam": 1.0}, {"estimator": "bilevel_reinforce_pp"}])
def test_gae_over_tokens_on_either_estimator_of_steps(settings: dict) -> None:
    def sampled(step: int) -> Node:
        return Node(parent=0, kind="sampled", step=step, token_ids=[2, 3, 4, 5], logprobs=[-0.5] * 4)

    steps = [dict(enumerate(rewards)) for rewards in REWARDS]
    nodes = [Node(parent=ROOT, kind="system", step=-1, token_ids=[1]), sampled(0), sampled(1)]
    forest = Forest([update_lab.example(str(number), nodes, each) for number, each in enumerate(steps)])
    batch = Batch(forest, ["0", "1"], ["g", "g"], list(steps), ["a", "a"])
    undiscounted = {"gamma": 1.0, "token_gamma": 1.0, "token_lam": 1.0}
    values = np.array([[first, first + 1, first + 2, first + 3] for first in (1.0, 2.0, 3.0, 4.0)]).ravel()
    made = make(batch, Targets.of(forest), AdvantageSettings.model_validate(undiscounted | settings), None, values)
    assert made.advantage_N[0] == pytest.approx(1.9014, abs=5e-5)
    assert made.return_N is not None
    assert made.return_N[0] == pytest.approx(1.5)
