"""Advantages made by the learner, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.advantage.estimate import by_ability
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.step.estimates import explained_variance, make
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import node

UNDISCOUNTED = {"gamma": 1.0, "lam": 1.0}


def two_trajectories() -> tuple[Batch, Targets]:
    """The first has steps of 2 and 1 tokens and a silent one between them; the second one step of 2."""
    first = [node(ROOT, [1]), node(0, [2, 3], step=0), node(0, [], step=1), node(0, [4], step=2)]
    other = [node(ROOT, [1]), node(0, [5, 6], step=0)]
    steps = [{0: 0.0, 1: 0.5, 2: 1.0}, {0: 3.0}]
    forest = Forest([update_lab.example("a", first, steps[0]), update_lab.example("b", other, steps[1])])
    return Batch(forest, ["a", "b"], ["g", "g"], list(steps), ["e/a", "e/b"]), Targets.of(forest)


def test_a_penalty_comes_off_its_steps_reward() -> None:
    batch, targets = two_trajectories()
    penalty = np.array([0.1, 0.2, 0.4, 1.0, 1.0])
    made = make(batch, targets, AdvantageSettings(estimator="dr_grpo"), penalty, None)
    # totals 1.5 - 0.7 and 3 - 2, so each is 0.1 from their mean
    assert made.advantage_N.tolist() == pytest.approx([-0.1, -0.1, -0.1, 0.1, 0.1])
    by_step = make(batch, targets, AdvantageSettings(gamma=1.0), penalty, None)
    returns = np.array([0.8, 1.1, 0.6, 1.0])  # the silent step counts in the whitening
    white = (returns - returns.mean()) / returns.std(ddof=1)
    assert by_step.advantage_N.tolist() == pytest.approx([white[0], white[0], white[2], white[3], white[3]], abs=1e-6)


def test_each_ability_has_advantages_of_mean_0_and_deviation_1_over_its_tokens() -> None:
    batch, targets = two_trajectories()
    settings = AdvantageSettings(gamma=1.0, per_ability=True)
    found = make(batch, targets, settings, None, None).advantage_N
    returns = np.array([1.5, 1.5, 1.0])  # of the first trajectory's tokens; the estimator's own whitening only scales and shifts
    white = (returns - returns.mean()) / returns.std(ddof=1)
    assert found[:3].tolist() == pytest.approx(white.tolist(), abs=1e-6)
    assert found[3:].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)  # all that the other ability has is the same
    one = make(replace(batch, abilities=["e/a", "e/a"]), targets, settings, None, None).advantage_N
    assert (one.mean(), one.std(ddof=1)) == (pytest.approx(0), pytest.approx(1, abs=1e-6))
    assert one[3] == one[4] == max(one)


def test_an_ability_whose_advantages_differ_by_rounding_alone_teaches_nothing() -> None:
    noise = by_ability(np.array([2.2e-8, -2.2e-8, 1.0, 3.0]), ["solved", "solved", "other", "other"])
    assert noise[:2].tolist() == [0.0, 0.0]
    assert noise[2:].tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_a_steps_value_is_that_of_its_first_token() -> None:
    batch, targets = two_trajectories()
    values = np.array([2.0, 9.0, 0.5, 1.0, 9.0])
    made = make(batch, targets, AdvantageSettings.model_validate({"estimator": "gae"} | UNDISCOUNTED), None, values)
    raw = np.array([1.5 - 2.0, 1.5 - 0.5, 1.0 - 0.5, 3.0 - 1.0])  # the silent step has the value of the one after it
    white = (raw - raw.mean()) / raw.std(ddof=1)
    assert made.advantage_N.tolist() == pytest.approx([white[0], white[0], white[2], white[3], white[3]], abs=1e-6)
    assert made.valued_N is not None
    assert made.return_N is not None
    assert made.valued_N.tolist() == [True, False, True, True, False]
    assert made.return_N[made.valued_N].tolist() == pytest.approx([1.5, 1.0, 3.0])


@pytest.mark.parametrize("estimator", ["gae", "bilevel_gae", "bilevel_reinforce_pp"])
def test_a_value_that_is_no_number_is_not_taken_for_a_silent_step(estimator: str) -> None:
    batch, targets = two_trajectories()
    values = np.array([2.0, 9.0, 0.5, np.nan, 9.0])
    made = make(batch, targets, AdvantageSettings.model_validate({"estimator": estimator}), None, values)
    assert not np.isfinite(made.advantage_N).any()  # so the loss is not finite and no step is taken


def test_a_trajectory_without_a_step_counts_in_its_group() -> None:
    batch, targets = two_trajectories()
    three = replace(batch, trajectories=["a", "b", "c"], groups=["g"] * 3, steps=[*batch.steps, {}])
    made = make(three, targets, AdvantageSettings(estimator="dr_grpo"), np.zeros(5), None)
    assert made.advantage_N.tolist() == pytest.approx([0.0, 0.0, 0.0, 1.5, 1.5])  # totals 1.5, 3 and 0
    values = np.array([2.0, 9.0, 0.5, 1.0, 9.0])
    for estimator in ("gae", "bilevel_gae", "bilevel_reinforce_pp"):
        settings = AdvantageSettings.model_validate({"estimator": estimator})
        assert (
            make(three, targets, settings, None, values).advantage_N.tolist()
            == make(batch, targets, settings, None, values).advantage_N.tolist()
        )


def test_bilevel_values_every_token() -> None:
    batch, targets = two_trajectories()
    values = np.array([2.0, 1.0, 0.5, 1.0, 4.0])
    settings = {"estimator": "bilevel_gae", "token_gamma": 0.5, "token_lam": 0.5} | UNDISCOUNTED
    made = make(batch, targets, AdvantageSettings.model_validate(settings), None, values)
    # returns of the steps 1.5, 1, 3; deltas: 0.5 * 1 - 2, 1.5 - 1; 1 - 0.5; 0.5 * 4 - 1, 3 - 4
    raw = np.array([-1.5 + 0.25 * 0.5, 0.5, 0.5, 1.0 - 0.25, -1.0])
    assert made.advantage_N.tolist() == pytest.approx(((raw - raw.mean()) / raw.std(ddof=1)).tolist(), abs=1e-6)
    assert made.return_N is not None
    assert made.return_N.tolist() == pytest.approx((raw + values).tolist())


def test_explained_variance() -> None:
    batch, targets = two_trajectories()
    settings = AdvantageSettings.model_validate({"estimator": "gae"} | UNDISCOUNTED)
    for values, expected in [([1.5, 0, 1.0, 3.0, 0], 1.0), ([0.0] * 5, 0.0)]:
        made = make(batch, targets, settings, None, np.array(values))
        assert explained_variance(np.array(values), made) == pytest.approx(expected)
