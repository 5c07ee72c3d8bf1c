"""The sampled tokens of a batch, numbered action by action, and their weights in the loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats, Ints
from nbrl.tasks.learner.batch.tree import Forest


@dataclass(frozen=True)
class Targets:
    """A actions with at least one token, N tokens: each action's example, step, first token and number of tokens."""

    example_A: Ints
    step_A: Ints
    first_A: Ints
    count_A: Ints

    @classmethod
    def of(cls, forest: Forest) -> "Targets":
        actions = [(action.example, action.step, len(action.logprobs_T)) for action in forest.actions]
        rows = np.array(actions, dtype=np.int64).reshape(-1, 3)
        return cls(rows[:, 0], rows[:, 1], np.cumsum(rows[:, 2]) - rows[:, 2], rows[:, 2])

    @property
    def action_N(self) -> Ints:
        return np.repeat(np.arange(len(self.count_A)), self.count_A)

    @property
    def example_N(self) -> Ints:
        return np.repeat(self.example_A, self.count_A)


def token_weights(
    targets: Targets,
    examples: Sequence[int],
    aggregation: Literal["token_mean", "action_mean", "trajectory_mean", "fixed_length"],
    fixed_length: int | None,
) -> Floats:
    """Return weights [N] such that the loss of the examples with K tokens is (1 / K) * sum of weight * loss; 0 for other
    examples.

    token_mean: 1 (L0's equation). action_mean: the mean over an action's tokens, then over actions. trajectory_mean: the mean
    over a trajectory's tokens, then over trajectories (GRPO). fixed_length: a trajectory's sum over `fixed_length`, then the mean
    over trajectories (Dr. GRPO). Every count covers the given examples, over all ranks and micro-batches.
    """
    example_N = targets.example_N
    here_N = np.isin(example_N, examples)
    total = here_N.sum()
    if not total:
        raise UpdateError("a minibatch holds no sampled token")
    trajectories = len(np.unique(example_N[here_N]))
    if aggregation == "token_mean":
        return here_N.astype(np.float64)
    if aggregation == "action_mean":
        actions = np.isin(targets.example_A, examples).sum()
        return here_N * total / (actions * np.repeat(targets.count_A, targets.count_A))
    if aggregation == "trajectory_mean":
        return here_N * total / (trajectories * np.bincount(example_N)[example_N])
    assert fixed_length is not None
    return here_N * total / (trajectories * float(fixed_length))
