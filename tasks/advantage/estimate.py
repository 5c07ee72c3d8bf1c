"""Computes step advantages from step rewards with the estimator that the settings name: a table of formulas.

Every estimator gets, and returns, one sequence of [steps] per trajectory. GAE, for estimators with a critic, is computed in the
learner, trajectory by trajectory.

The node writes one of two tables, one row per step: finished advantages, or the rewards from which the learner computes them,
where a trajectory without a step has one row with only its name, because it counts in its group.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from nbrl.tasks.advantage.settings import OVER_BRANCHES, AdvantageSettings
from nbrl.tasks.layout.branches import branch_of, own_steps_from

ADVANTAGES_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("advantage", pa.float64())])
REWARDS_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("reward", pa.float64())])
ROUNDING = 1e-6  # advantages below it are rounding errors of equal rewards
EQUAL = 1e-9  # of the largest reward: totals that differ by less are equal, for sums of rewards are rounded


def equal(totals: np.ndarray, largest: float) -> bool:
    """Return whether the totals [any number] of rewards, of which none is above `largest` in size, differ by rounding alone."""
    return not len(totals) or bool(np.isfinite(largest) and np.ptp(totals) <= EQUAL * largest)


def whiten(values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return (x − mean) / (std + 1e-8) over all entries of all arrays, std unbiased and 0 for a single entry (L0, arXiv
    2506.23667).

    Of entries that are equal, exactly 0.
    """
    entries = np.concatenate(values)
    if equal(entries, np.abs(entries).max(initial=0.0)):
        return [np.zeros(len(array)) for array in values]
    spread = entries.std(ddof=1) if len(entries) > 1 else 0.0
    return [(array - entries.mean()) / (spread + 1e-8) for array in values]


def within_groups(
    step_rewards: Sequence[Sequence[float]], groups: Sequence[str], score: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Apply `score`, which turns the totals R of one group's trajectories into their advantages, the same on each step of a
    trajectory.

    A trajectory that ended before its first step has R = 0: without it the others would be compared only with longer ones. Where
    the totals of a group are equal, its advantages are exactly 0.
    """
    totals = np.array([sum(rewards) for rewards in step_rewards], dtype=np.float64)
    largest = np.array([max(map(abs, rewards), default=0.0) for rewards in step_rewards], dtype=np.float64)
    names = np.array(groups)
    advantages = np.zeros_like(totals)
    for name in set(groups):
        mine = names == name
        if not equal(totals[mine], largest[mine].max()):
            advantages[mine] = score(totals[mine])
    return [np.full(len(rewards), advantage) for rewards, advantage in zip(step_rewards, advantages, strict=True)]


def discounted_returns(rewards: Sequence[float], gamma: float) -> np.ndarray:
    """Return R_t = Σ_{u≥t} γ^(u−t) r_u over the steps of one trajectory; shape [steps]."""
    returns = np.zeros(len(rewards))
    following = 0.0
    for step in range(len(rewards) - 1, -1, -1):
        following = rewards[step] + gamma * following
        returns[step] = following
    return returns


def reinforce_pp(step_rewards: Sequence[Sequence[float]], gamma: float) -> list[np.ndarray]:
    """Compute step-level REINFORCE++ (arXiv 2501.03262; over steps as in L0, arXiv 2506.23667).

    Step returns whitened over all steps of the batch; one array of [steps] per trajectory.
    """
    return whiten([discounted_returns(rewards, gamma) for rewards in step_rewards])


def grpo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """Compute GRPO (arXiv 2402.03300, section 4.1.2, outcome supervision).

    A = (R − mean of the group) / (std of the group + 1e-8), std unbiased and 0 for a group of one.
    """

    def score(totals: np.ndarray) -> np.ndarray:
        spread = totals.std(ddof=1) if len(totals) > 1 else 0.0
        return (totals - totals.mean()) / (spread + 1e-8)

    return within_groups(step_rewards, groups, score)


def dr_grpo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """Compute Dr. GRPO (arXiv 2503.20783, section 3.2).

    A = R − mean of the group: without GRPO's std, which gives more weight to questions that are nearly always right or wrong.

    The paper's other half, a constant in place of each response's length, is update.aggregation fixed_length.
    """
    return within_groups(step_rewards, groups, lambda totals: totals - totals.mean())


def reinforce_pp_baseline(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """Compute REINFORCE++-baseline (arXiv 2501.03262, section on the variant with several responses per prompt).

    A = whiten(R − mean of the group): the baseline is the group's, the scale that of the whole batch.

    R is the trajectory's total, the same on each of its steps; whitening is over all steps of the batch.
    """
    return whiten(dr_grpo(step_rewards, groups))


def rloo(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """Compute RLOO (arXiv 2402.14740): the baseline of a trajectory is the mean of the others in its group.

    A_i = R_i − (Σ_{j≠i} R_j) / (n − 1). Needs n ≥ 2.
    """
    return within_groups(step_rewards, groups, lambda totals: totals - (totals.sum() - totals) / max(1, len(totals) - 1))


def max_rl(step_rewards: Sequence[Sequence[float]], groups: Sequence[str]) -> list[np.ndarray]:
    """Compute MaxRL (arXiv 2602.02710): with rewards of 0 and 1, an unbiased gradient of a truncated log-likelihood of being
    right.

    A = (R − mean of the group) / mean of the group, 0 where that mean is not above 0: no trajectory of the group was right.
    """

    def score(totals: np.ndarray) -> np.ndarray:
        mean = totals.mean()
        return (totals - mean) / mean if mean > 0 else np.zeros_like(totals)

    return within_groups(step_rewards, groups, score)


def over_branches(
    step_rewards: Sequence[Sequence[float]], groups: Sequence[str], names: Sequence[str], deep: bool
) -> list[np.ndarray]:
    """Compute advantages between branched states, whitened over the batch: A = whiten(Σ_{t=k}^{l-1} r_t + V(s_l) − V(s_k)).

    V of a state is the mean of the returns from there: of the group's own trajectories at the beginning, of a trajectory and its
    branches where they leave it, 0 at the end (VinePPO, arXiv 2410.01679, equations 5 and 6, over the steps between two branched
    states as in SPO, arXiv 2505.23564). Every step from s_k to s_l has that advantage; the steps before a branch are not its own
    and get none. Where nothing is branched this is reinforce_pp_baseline.

    With `deep`, the return of a trajectory that was branched counts as the rewards until its next branched state and the value of
    that: all branches below a state count for its value.
    """
    branches: dict[str, dict[int, list[int]]] = {}  # by the origin and the step: places of the branches
    roots: dict[str, list[int]] = {}
    for number, (name, group) in enumerate(zip(names, groups, strict=True)):
        branch = branch_of(name)
        if branch is None:
            roots.setdefault(group, []).append(number)
        else:
            branches.setdefault(branch.origin, {}).setdefault(branch.step, []).append(number)
    returns = [discounted_returns(rewards, 1.0) for rewards in step_rewards]

    def from_step(number: int, step: int) -> float:
        return float(returns[number][step]) if step < len(returns[number]) else 0.0

    def value(number: int, step: int) -> float:
        """Return the mean return of a trajectory and its branches from a step on."""
        through = [from_step(each, step) for each in branches[names[number]][step]]
        return float(np.mean([own(number, step) if deep else from_step(number, step), *through]))

    def own(number: int, step: int) -> float:
        """Return the rewards from a step until the next branched state, and its value; all rewards where there is none."""
        later = min((each for each in branches.get(names[number], ()) if each > step), default=None)
        return from_step(number, step) if later is None else sum(step_rewards[number][step:later]) + value(number, later)

    advantages = [np.zeros(len(rewards)) for rewards in step_rewards]
    for members in roots.values():
        first = float(np.mean([own(each, 0) if deep else from_step(each, 0) for each in members]))
        for number in members:
            states = [(0, first), *((step, value(number, step)) for step in sorted(branches.get(names[number], ())))]
            ends = [*states[1:], (len(step_rewards[number]), 0.0)]
            for (start, before), (end, after) in zip(states, ends, strict=True):
                advantages[number][start:end] = sum(step_rewards[number][start:end]) + after - before
            for step, baseline in states[1:]:
                for each in branches[names[number]][step]:
                    advantages[each][step:] = from_step(each, step) - baseline
    own_steps = [array[own_steps_from(name) :] for array, name in zip(advantages, names, strict=True)]
    whitened = whiten(own_steps)
    return [np.concatenate([np.zeros(len(a) - len(w)), w]) for a, w in zip(advantages, whitened, strict=True)]


GROUPED = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "rloo": rloo,
    "max_rl": max_rl,
}


def estimate(
    step_rewards: Sequence[Sequence[float]], groups: Sequence[str], settings: AdvantageSettings, names: Sequence[str] = ()
) -> list[np.ndarray]:
    """Return one array of [steps] per trajectory, at least one of which has a step. For the estimators without a critic; `names`
    are those of the trajectories, for estimators over branches.
    """
    if settings.estimator == "reinforce_pp":
        return reinforce_pp(step_rewards, settings.gamma)
    if settings.estimator in OVER_BRANCHES:
        return over_branches(step_rewards, groups, names, deep=settings.estimator == "tree")
    return GROUPED[settings.estimator](step_rewards, groups)


def by_ability(advantages: np.ndarray, abilities: Sequence[str]) -> np.ndarray:
    """Return the advantages of each ability on one scale (task advantage normalisation: AgentRL, arXiv 2510.04206).

    The advantages [N] of all sampled tokens, those of each ability whitened: mean 0 and deviation 1 over its tokens.

    Where those of an ability differ by rounding errors alone, they are 0.
    """
    names, numbers = np.unique(np.asarray(abilities), return_inverse=True)
    made = np.zeros(len(advantages))
    for number in range(len(names)):
        mine = advantages[numbers == number]
        if np.ptp(mine) >= ROUNDING:
            (made[numbers == number],) = whiten([mine])
    return made


def gae(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> np.ndarray:
    """Return A_t = Σ_l (γλ)^l δ_{t+l}, δ_t = r_t + γ V_{t+1} − V_t; the last value is 0. Not whitened; [steps]."""
    advantages = np.zeros(len(rewards))
    following = value_after = 0.0
    for t in range(len(rewards) - 1, -1, -1):
        delta = rewards[t] + gamma * value_after - values[t]
        following = delta + gamma * lam * following
        advantages[t] = following
        value_after = values[t]
    return advantages


def token_gae(step_return: float, values: Sequence[float], gamma: float, lam: float) -> np.ndarray:
    """Compute GAE inside one step: the step's return is the reward of its last token, and no other token has one. Not whitened;
    [tokens].

    L0's code connects the levels in this way (repository cmriat/l0). With GAE over steps, the step's return is its advantage plus
    its value, and then with γ = λ = 1 the first token's advantage is the step's own; with REINFORCE++ it is R_t.
    """
    rewards = np.zeros(len(values))
    rewards[-1] = step_return
    return gae(rewards.tolist(), values, gamma, lam)
