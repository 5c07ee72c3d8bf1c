"""How exported weights are rounded."""

from pathlib import Path

import pytest
import torch

from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.checkpoint.hugging_face import Rounding, stochastic
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load
from tests.tasks.learner import update_lab


def test_stochastic_rounding_takes_a_neighbour_and_is_right_in_the_mean() -> None:
    below, above = torch.tensor([1.0, -1.0]), torch.tensor([1.0078125, -1.0078125])  # beside each other in bfloat16
    weight = below + 0.3 * (above - below)
    drawn = torch.stack([stochastic(weight, seed).float() for seed in range(4000)])
    assert ((drawn == below) | (drawn == above)).all()
    assert (drawn == above).float().mean(0).tolist() == pytest.approx([0.3, 0.3], abs=0.03)


def test_what_bfloat16_has_stays_and_so_does_what_is_no_number() -> None:
    weight = torch.tensor([0.0, -0.0, 1.5, float("inf"), float("-inf")])
    assert torch.equal(stochastic(weight, 1).float(), weight)
    assert stochastic(torch.tensor([float("nan")]), 1).isnan().all()


def test_a_seed_and_a_name_decide_the_rounding() -> None:
    weight = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    one, other = Rounding(torch.bfloat16, 3), Rounding(torch.bfloat16, 4)
    assert torch.equal(one("a", weight), one("a", weight))
    assert not torch.equal(one("a", weight), other("a", weight))
    assert not torch.equal(one("a", weight), one("b", weight))
    assert torch.equal(Rounding(torch.bfloat16)("a", weight), weight.bfloat16())


def test_only_bfloat16_is_rounded_stochastically() -> None:
    with pytest.raises(UpdateError, match="set it to nearest"):
        Rounding(torch.float32, 0)
    with pytest.raises(ConfigError, match="float32 is published"):
        load("tiny-cpu", ["publish.rounding=stochastic"])
    with pytest.raises(ConfigError, match=r"the weights of .*tiny are F32; leave it out"):
        check_config(load("tiny-cpu", ["publish.rounding=stochastic", "publish.dtype=stored"]))


@pytest.mark.more
@pytest.mark.usefixtures("alone")
def test_an_order_carried_out_again_rounds_the_same(tmp_path: Path) -> None:
    policy = update_lab.make_policy(tmp_path / "policy", torch.bfloat16)
    found = []
    for name, rounding in (("a", "stochastic"), ("b", "stochastic"), ("c", "nearest")):
        trajectories = update_lab.make_trajectories(1)
        order = update_lab.write_order(tmp_path / name, trajectories, str(tmp_path / name / "out"), rounding=rounding)
        found.append((update_lab.digest_of(order), update_lab.weights(update_lab.make_learner(policy, lr=1e-5).execute(order))))
    (first, one), (second, again), (third, nearest) = found
    assert first == second != third
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert any(not torch.equal(one[name], nearest[name]) for name in one)
