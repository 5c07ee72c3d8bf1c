"""Every loss, aggregation and importance weight through the learner, against the formula applied to one sequence a step."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateResult
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import EXACT, weights

pytestmark = pytest.mark.usefixtures("alone")

# With eps 1 and no clip Adam's steps are smooth in the gradient, so weights tell gradients apart.
PLAIN: dict[str, Any] = EXACT | {"kl_coefficient": 0, "tokens_per_micro_batch": 100}

# Loss of an action's tokens from its log-probs, the old ones, the engine's and its advantage.
Naive = Callable[[Tensor, Tensor, Tensor, float], Tensor]
Aggregate = Callable[[list[list[Tensor]]], Tensor]


def plain(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return -advantage * logp


def clipped(ratio: Tensor, advantage: float, low: float, high: float, dual: float | None = None) -> Tensor:
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
    return -(torch.maximum(gain, torch.tensor(dual * advantage)) if dual and advantage < 0 else gain)


def ppo(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return clipped(torch.exp(logp - old), advantage, 0.2, 0.25, 3.0)


def ppo_engine(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return ppo(logp, engine, engine, advantage)


def gspo_engine(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return clipped(torch.exp((logp - engine).mean()), advantage, 0.05, 0.05).expand(len(logp))


def cispo_engine(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return -torch.exp(logp - engine).detach().clamp(0.9, 1.1) * advantage * logp


def dppo_engine(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    moved = (torch.exp(logp) - torch.exp(engine)).detach()
    far = moved > 0.05 if advantage > 0 else moved < -0.05
    return -torch.exp(logp - engine) * advantage * ~far


def truncated(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return torch.exp(logp - engine).detach().clamp(max=1.1) * -advantage * logp


def ppo_truncated(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return torch.exp(old - engine).clamp(max=1.1) * ppo(logp, old, engine, advantage)


def ppo_held_to_the_first(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    return ppo(logp, old, engine, advantage) + 2.0 * (old - logp).clamp(-10, 10).square() / 2


def masked_tokens(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    weight = torch.exp(logp - engine).detach()
    return torch.where((weight > 1.1) | (weight < 1 / 1.1), 0.0, weight) * -advantage * logp


def masked_actions(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
    weight = torch.exp((logp - engine).detach().mean()).item()
    return (weight if 1 / 1.1 <= weight <= 1.1 else 0.0) * -advantage * logp


def token_mean(losses: list[list[Tensor]]) -> Tensor:
    return torch.cat([action for trajectory in losses for action in trajectory]).mean()


def action_mean(losses: list[list[Tensor]]) -> Tensor:
    return torch.stack([action.mean() for trajectory in losses for action in trajectory]).mean()


def trajectory_mean(losses: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.cat(trajectory).mean() for trajectory in losses]).mean()


def fixed_length(losses: list[list[Tensor]]) -> Tensor:
    return torch.stack([torch.cat(trajectory).sum() / 40 for trajectory in losses]).mean()


def naive_steps(
    policy: Path, trajectories: list[Trajectory], loss: Naive, aggregate: Aggregate, steps: int, **adam: Any
) -> dict[str, Tensor]:
    lm: Any = AutoModelForCausalLM.from_pretrained(policy, dtype=torch.float64).eval()
    optimizer = torch.optim.AdamW(lm.parameters(), **{"lr": 1.0, "eps": 1.0, "betas": (0.9, 0.95), "weight_decay": 0.0} | adam)
    with torch.no_grad():
        old = [update_lab.action_logprobs(lm, each) for each in trajectories]
    for _ in range(steps):
        row, losses = 0, []
        for trajectory, before in zip(trajectories, old, strict=True):
            mine = []
            for logp, was, node in zip(update_lab.action_logprobs(lm, trajectory), before, trajectory.sampled(), strict=True):
                engine = torch.tensor(node.logprobs, dtype=torch.float64)
                mine.append(loss(logp, was, engine, update_lab.alternating(row)))
                row += 1
            losses.append(mine)
        optimizer.zero_grad()
        aggregate(losses).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in lm.named_parameters()}


def learn(policy: Path, folder: Path, trajectories: list[Trajectory], staleness: int = 0, **fields: Any) -> UpdateResult:
    learner = Learner(UpdateSettings.model_validate(PLAIN | fields), update_lab.places(policy), torch.device("cpu"))
    return learner.execute(update_lab.write_order(folder, trajectories, str(folder / "out"), staleness=staleness))


def assert_stepped_to(expected: dict[str, Tensor], result: UpdateResult, policy: Path) -> None:
    before, after = load_file(policy / "model.safetensors"), weights(result)
    for name, value in expected.items():
        moved = value - before[name]
        assert torch.linalg.norm(after[name] - value) <= 1e-6 * torch.linalg.norm(moved), name


PPO: dict[str, Any] = {"loss": {"kind": "ppo"}, "epochs": 3}
ENGINE = {"old": "engine", "clip_low": 0.05, "clip_high": 0.05}
CASES: list[tuple[dict[str, Any], Naive, Aggregate, int]] = [
    ({}, plain, token_mean, 1),
    ({"aggregation": "action_mean"}, plain, action_mean, 1),
    ({"aggregation": "trajectory_mean"}, plain, trajectory_mean, 1),
    ({"aggregation": "fixed_length", "fixed_length": 40}, plain, fixed_length, 1),
    ({"loss": {"kind": "ppo", "old": "engine"}}, ppo_engine, token_mean, 1),
    ({"loss": {"kind": "gspo"} | ENGINE, "aggregation": "action_mean"}, gspo_engine, action_mean, 1),
    ({"loss": {"kind": "cispo", "old": "engine", "clip_low": 0.1, "clip_high": 0.1}}, cispo_engine, token_mean, 1),
    ({"loss": {"kind": "dppo", "old": "engine", "delta": 0.05}}, dppo_engine, token_mean, 1),
    ({"tis": {"kind": "truncate", "high": 1.1}}, truncated, token_mean, 1),
    ({"tis": {"kind": "mask_tokens", "high": 1.1}}, masked_tokens, token_mean, 1),
    ({"tis": {"kind": "mask_actions", "high": 1.1}, "aggregation": "trajectory_mean"}, masked_actions, trajectory_mean, 1),
    (PPO, ppo, token_mean, 3),
    (PPO | {"tis": {"kind": "truncate", "high": 1.1}}, ppo_truncated, token_mean, 3),
    (PPO | {"kl_coefficient": 2.0, "kl_estimator": "k2"}, ppo_held_to_the_first, token_mean, 3),
]


# One case of each aggregation, loss and correction; the others differ from these in less.
FIRST = (2, 3, 5, 6, 7, 10, 13)


@pytest.mark.parametrize(
    ("fields", "loss", "aggregate", "steps"),
    [pytest.param(*case, marks=() if number in FIRST else pytest.mark.more) for number, case in enumerate(CASES)],
)
def test_the_step_is_that_of_the_formula(
    policy64: Path, tmp_path: Path, fields: dict[str, Any], loss: Naive, aggregate: Aggregate, steps: int
) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(11), 0.4)
    result = learn(policy64, tmp_path, trajectories, **fields)
    expected = naive_steps(policy64, trajectories, loss, aggregate, steps)
    assert_stepped_to(expected, result, policy64)
    if fields:
        default, after = naive_steps(policy64, trajectories, plain, token_mean, 1), weights(result)
        assert any(torch.linalg.norm(after[name] - default[name]) > 1e-3 for name in default)  # the option acts


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_the_old_policy_lies_between_the_engines_and_the_current_one_by_the_age_of_the_samples(
    policy64: Path, tmp_path: Path, staleness: int
) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(11), 0.4)

    def a3po(logp: Tensor, _: Tensor, engine: Tensor, advantage: float) -> Tensor:
        between = engine + staleness / (staleness + 1) * (logp.detach() - engine)
        return torch.exp(between - engine).clamp(max=1.1) * ppo(logp, between, engine, advantage)

    settings: dict[str, Any] = {
        "loss": {"kind": "ppo", "old": "interpolated"},
        "epochs": 2,
        "tis": {"kind": "truncate", "high": 1.1},
    }
    result = learn(policy64, tmp_path, trajectories, staleness, **settings)
    assert_stepped_to(naive_steps(policy64, trajectories, a3po, token_mean, 2), result, policy64)
    assert "seconds/old" not in result.metrics  # the pass that it saves


@pytest.mark.parametrize("adam", [{"betas": (0.5, 0.7)}, {"eps": 0.3}, {"weight_decay": 0.1}], ids=["betas", "eps", "decay"])
def test_the_optimiser_is_adamw_of_the_settings(policy64: Path, tmp_path: Path, adam: dict[str, Any]) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(11, 3), 0.4)
    result = learn(policy64, tmp_path, trajectories, **PPO, **adam)
    assert_stepped_to(naive_steps(policy64, trajectories, ppo, token_mean, 3, **adam), result, policy64)


@pytest.mark.parametrize("kind", ["gspo", *(pytest.param(kind, marks=pytest.mark.more) for kind in ("ppo", "cispo", "dppo"))])
def test_one_step_on_the_trainers_own_logprobs_is_the_policy_gradient(policy64: Path, tmp_path: Path, kind: str) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(12), 0.4)
    plain_ = learn(policy64, tmp_path / "plain", trajectories)
    result = learn(policy64, tmp_path / kind, trajectories, loss={"kind": kind})
    torch.testing.assert_close(weights(result), weights(plain_), rtol=1e-12, atol=1e-12)
    assert result.metrics["update/ratio"] == 1
    assert result.metrics["update/clipped_share"] == 0
    assert "seconds/old" not in result.metrics


def test_importance_weights_are_reported(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(13), 0.0)
    node = trajectories[0].sampled()[0]
    node.logprobs[0] -= 2.0  # the trainer finds this token e^2 times likelier
    tokens = sum(len(each.token_ids) for trajectory in trajectories for each in trajectory.sampled())
    metrics = learn(policy64, tmp_path, trajectories, tis={"kind": "truncate", "high": 1.5}).metrics
    assert metrics["mismatch/tis_high_share"] == pytest.approx(1 / tokens)
    assert metrics["mismatch/tis_low_share"] == 0
    assert metrics["mismatch/tis_weight"] == pytest.approx(1 + 0.5 / tokens, rel=1e-6)
    total, squares = tokens - 1 + math.exp(2.0), tokens - 1 + math.exp(4.0)
    assert metrics["mismatch/ess_share"] == pytest.approx(total**2 / (tokens * squares), rel=1e-5)


def test_a_trajectory_whose_tokens_drifted_in_the_mean_teaches_nothing(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(13), 0.0)
    first = trajectories[0].sampled()
    assert len(first) > 1
    drifted, others = first[0], [node for each in trajectories[1:] for node in each.sampled()]
    drifted.logprobs[:] = [logprob - 3.0 for logprob in drifted.logprobs]  # the other actions of the trajectory did not drift
    taught = iter([False] * len(first) + [True] * len(others))

    def masked(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
        return -advantage * logp if next(taught) else 0.0 * logp

    result = learn(policy64, tmp_path, trajectories, tis={"kind": "mask_trajectories", "high": 1.2})
    assert_stepped_to(naive_steps(policy64, trajectories, masked, token_mean, 1), result, policy64)
    share = sum(len(node.token_ids) for node in first) / sum(len(node.token_ids) for node in [*first, *others])
    assert result.metrics["mismatch/tis_high_share"] == pytest.approx(share)
    assert result.metrics["seconds/old"] > 0


def test_minibatches_are_optimiser_steps_whose_ratio_moves(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(14, 8), 0.1)
    many = learn(policy64, tmp_path / "many", trajectories, loss={"kind": "ppo"}, minibatches=4, epochs=2)
    assert many.metrics["update/steps"] == 8
    assert many.metrics["update/ratio"] != pytest.approx(1, abs=1e-9)
    assert 0 < many.metrics["update/clipped_share"] < 1
    assert many.metrics["mismatch/logprob_max_abs"] <= 0.1 + 1e-5  # engine against the policy that was sampled, at every step
    engine = learn(policy64, tmp_path / "engine", trajectories, loss={"kind": "ppo", "old": "engine"}, minibatches=4, epochs=2)
    assert engine.metrics["mismatch/logprob_max_abs"] <= 0.1 + 1e-5
    assert "seconds/old" not in engine.metrics
    fewer = learn(policy64, tmp_path / "fewer", trajectories[:2], loss={"kind": "ppo"}, minibatches=4)
    assert fewer.metrics["update/steps"] == 2


def test_a_step_that_is_not_finite_is_left_out_and_the_others_are_taken(policy64: Path, tmp_path: Path) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(15, 4), 0.1)
    settings = UpdateSettings.model_validate(PLAIN | {"loss": {"kind": "ppo"}, "minibatches": 4})
    learner = Learner(settings, update_lab.places(policy64), torch.device("cpu"))
    bad = lambda row: float("inf") if row == 0 else 1.0  # noqa: E731
    result = learner.execute(update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"), bad))
    assert (result.metrics["update/steps"], result.metrics["update/skipped"]) == (3, 1)
    assert " of 4: the loss is" in result.skipped
    assert all(torch.isfinite(value).all() for value in weights(result).values())
