"""Orders that say how many optimiser steps they take, as those of a warm start do."""

from pathlib import Path

import pytest
import torch

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.learner.batch.batch import batch_of, minibatches
from nbrl.tasks.learner.batch.targets import Targets
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import EXACT, make_learner, make_trajectories, weights, write_order

pytestmark = pytest.mark.usefixtures("alone")
SUPERVISED = {**EXACT, "kl_coefficient": 0.0}


def _apart(seed: int) -> list[Trajectory]:
    return [each.model_copy(update={"group": each.id}) for each in make_trajectories(seed)]


@pytest.mark.more
def test_its_steps_are_those_of_orders_of_one_step_each(policy64: Path, tmp_path: Path) -> None:
    trajectories, seed = _apart(3), 11
    order = write_order(tmp_path / "whole", trajectories, str(tmp_path / "out"), lambda row: 1.0, steps=3, seed=seed)
    whole = make_learner(policy64, **SUPERVISED).execute(order)
    assert whole.metrics["update/steps"] == 3

    batch = batch_of(*update_lab.tables(order))
    shares = minibatches(batch.groups, Targets.of(batch.forest), 1, 3, seed)
    assert sorted(example for share in shares for example in share) == list(range(batch.examples))
    learner, before = make_learner(policy64, **SUPERVISED), None
    for number, share in enumerate(shares):
        mine = [each for each in trajectories if each.id in {batch.trajectories[example] for example in share}]
        folder = tmp_path / str(number)
        one = write_order(folder / "order", mine, str(folder / "out"), lambda row: 1.0, iteration=number, checkpoint_in=before)
        before = learner.execute(one).checkpoint
    assert before is not None
    for name, value in weights(whole).items():
        assert torch.allclose(value, weights(before)[name], rtol=1e-9, atol=1e-12), name


@pytest.mark.more
def test_repeated_demonstrations_become_likelier(policy64: Path, tmp_path: Path) -> None:
    learner = make_learner(policy64, workers=1, dtype="float64", lr=1e-2, kl_coefficient=0.0)
    losses, before = [], None
    for number in range(4):
        folder = tmp_path / str(number)
        order = write_order(
            folder / "order", _apart(4), str(folder / "out"), lambda row: 1.0, iteration=number, checkpoint_in=before, steps=2
        )
        result = learner.execute(order)
        losses.append(result.metrics["update/loss"])
        before = result.checkpoint
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.7 * losses[0]


def test_the_number_of_steps_identifies_an_order_only_where_it_is_given(tmp_path: Path) -> None:
    order = write_order(tmp_path, _apart(1), str(tmp_path / "out"))
    digests = {update_lab.digest_of(order.model_copy(update={"steps": steps})) for steps in (None, 1, 2)}
    assert len(digests) == 3
