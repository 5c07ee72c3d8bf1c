"""Advantages that need the learner: from step rewards with a KL penalty, with a critic's values, or whitened over tokens."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nbrl.tasks.advantage.estimate import by_ability, discounted_returns, estimate, gae, token_gae, whiten
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets


@dataclass(frozen=True)
class Estimates:
    """Per token: its advantage and, with a critic, the target of its value and whether the value is trained."""

    advantage_N: Floats
    return_N: Floats | None = None
    valued_N: npt.NDArray[np.bool_] | None = None


def make(
    batch: Batch, targets: Targets, settings: AdvantageSettings, penalty_N: Floats | None, value_N: Floats | None
) -> Estimates:
    """Apply the estimator to the batch's step rewards minus the sum of `penalty_N` over each step's tokens.

    `value_N[i]` is the value of the state in which token i was sampled; a step's value is that at its first token (L0).
    """
    made = _estimated(batch, targets, settings, penalty_N, value_N)
    if not settings.per_ability:
        return made
    ability_N = [batch.abilities[example] for example in targets.example_N.tolist()]
    return replace(made, advantage_N=by_ability(made.advantage_N, ability_N))


def _estimated(
    batch: Batch, targets: Targets, settings: AdvantageSettings, penalty_N: Floats | None, value_N: Floats | None
) -> Estimates:
    position = [{step: place for place, step in enumerate(sorted(steps))} for steps in batch.steps]
    place_A = [position[e][s] for e, s in zip(targets.example_A.tolist(), targets.step_A.tolist(), strict=True)]
    rewards = [np.array([steps[step] for step in sorted(steps)]) for steps in batch.steps]
    if penalty_N is not None:
        for example, place, penalty in zip(targets.example_A, place_A, np.add.reduceat(penalty_N, targets.first_A), strict=True):
            rewards[example][place] -= penalty
    if value_N is None:
        step_advantages = estimate([each.tolist() for each in rewards], batch.groups, settings)
        return Estimates(_broadcast(step_advantages, targets, place_A))
    if settings.estimator == "bilevel_reinforce_pp":
        returns = [discounted_returns(each.tolist(), settings.gamma) for each in rewards]
        return _over_tokens(returns, targets, place_A, settings, value_N)
    values = _step_values(batch, targets, place_A, value_N)
    raw = [gae(r.tolist(), v.tolist(), settings.gamma, settings.lam) for r, v in zip(rewards, values, strict=True)]
    if settings.estimator == "gae":
        return_N = np.zeros(len(value_N))
        valued_N = np.zeros(len(value_N), dtype=bool)
        valued_N[targets.first_A] = True
        return_N[targets.first_A] = [raw[e][p] + values[e][p] for e, p in zip(targets.example_A, place_A, strict=True)]
        return Estimates(_broadcast(whiten(raw), targets, place_A), return_N, valued_N)
    returns = [advantage + value for advantage, value in zip(raw, values, strict=True)]
    return _over_tokens(returns, targets, place_A, settings, value_N)


def _over_tokens(
    returns: Sequence[Floats], targets: Targets, place_A: Sequence[int], settings: AdvantageSettings, value_N: Floats
) -> Estimates:
    """Compute GAE over the tokens of each step, whitened over all tokens of the batch, from the steps' returns."""
    tokens = [
        token_gae(returns[e][p], value_N[first : first + count].tolist(), settings.token_gamma, settings.token_lam)
        for e, p, first, count in zip(targets.example_A, place_A, targets.first_A, targets.count_A, strict=True)
    ]
    return Estimates(np.concatenate(whiten(tokens)), np.concatenate(tokens) + value_N, np.ones(len(value_N), dtype=bool))


def explained_variance(value_N: Floats, estimates: Estimates) -> float:
    """Return 1 - Var(R - V) / Var(R) over the tokens whose value is trained; 0 if all returns are equal."""
    assert estimates.return_N is not None
    returns, values = estimates.return_N[estimates.valued_N], value_N[estimates.valued_N]
    spread = returns.var()
    return float(1 - (returns - values).var() / spread) if spread > 0 else 0.0


def _broadcast(step_advantages: Sequence[Floats], targets: Targets, place_A: Sequence[int]) -> Floats:
    """Return each step's advantage on all of its tokens."""
    advantage_A = [step_advantages[e][p] for e, p in zip(targets.example_A, place_A, strict=True)]
    return np.repeat(np.array(advantage_A, dtype=np.float64), targets.count_A)


def _step_values(batch: Batch, targets: Targets, place_A: Sequence[int], value_N: Floats) -> list[Floats]:
    """Return the values by example and step. A step without a sampled token has the value of the next step, and 0 at the end."""
    first_values: list[dict[int, float]] = [{} for _ in batch.steps]
    for example, place, first in zip(targets.example_A, place_A, targets.first_A, strict=True):
        first_values[example][place] = value_N[first]
    values = [np.zeros(len(steps)) for steps in batch.steps]
    for mine, sampled in zip(values, first_values, strict=True):
        after = 0.0
        for place in range(len(mine) - 1, -1, -1):
            mine[place] = after = sampled.get(place, after)
    return values
