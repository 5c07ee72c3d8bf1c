"""Learning with a critic, and with a KL in the reward: what the learner must know before it can estimate."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from nbrl.tasks.advantage.estimate import reinforce_pp
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.attention.tree_attention import NAME as TREE
from nbrl.tasks.learner.batch.micro_batch import to_device
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.model.policy_model import Critic
from nbrl.tasks.learner.orders import UpdateResult
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import EXACT, make_learner, weights

pytestmark = pytest.mark.usefixtures("alone")

STEP: dict[str, Any] = EXACT | {"lr": 0.1, "tokens_per_micro_batch": 100}
CRITIC: dict[str, Any] = STEP | {"kl_coefficient": 0, "critic": {"lr": 1e-3}, "eps": 1e-8, "grad_clip": 1.0}
GAE = AdvantageSettings(estimator="gae", gamma=1.0, lam=1.0)
BILEVEL = AdvantageSettings(estimator="bilevel_gae")
REINFORCE = AdvantageSettings(gamma=1.0)


def run_of(
    learner: Learner,
    folder: Path,
    estimate: AdvantageSettings | None,
    numbers: range,
    before: str | None = None,
    out: str = "out",
) -> list[UpdateResult]:
    results = []
    for number in numbers:
        order = update_lab.write_order(
            folder,
            update_lab.make_trajectories(20),
            str(folder / f"{out}{number}"),
            iteration=number,
            checkpoint_in=before,
            estimator=estimate,
        )
        results.append(learner.execute(order))
        before = results[-1].checkpoint
    return results


def same(left: UpdateResult, right: UpdateResult) -> bool:
    return all(torch.equal(value, weights(right)[name]) for name, value in weights(left).items())


def test_values_on_a_tree_are_those_of_one_sequence_a_step(policy64: Path) -> None:
    trajectories = update_lab.make_trajectories(21)
    critic = Critic(AutoModelForCausalLM.from_pretrained(policy64, dtype=torch.float64, attn_implementation=TREE))
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    examples = update_lab.examples(trajectories)
    micro = to_device(Forest(examples).pack(), torch.device("cpu"))
    plain = AutoModelForCausalLM.from_pretrained(policy64, dtype=torch.float64).eval().base_model
    expected = []
    with torch.no_grad():
        found = critic(micro.input_ids_T, micro.positions_T, micro.tree, micro.predictor_N)
        for trajectory in trajectories:
            for index, node in enumerate(trajectory.nodes):
                if node.kind == "sampled":
                    hidden = plain(input_ids=torch.tensor([trajectory.path(index)])).last_hidden_state[0]
                    expected.append(critic.head(hidden[-len(node.token_ids) - 1 : -1])[:, 0])
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.more
def test_with_the_first_values_of_zero_gae_is_reinforce(policy64: Path, tmp_path: Path) -> None:
    (with_critic,) = run_of(make_learner(policy64, **CRITIC), tmp_path / "gae", GAE, range(1))
    trajectories, row, rewards = update_lab.make_trajectories(20), 0, []
    for each in trajectories:
        rewards.append([update_lab.alternating(row + step) for step in range(len(each.sampled()))])
        row += len(rewards[-1])
    advantages = [float(a) for array in reinforce_pp(rewards, 1.0) for a in array]
    order = update_lab.write_order(tmp_path / "table", trajectories, str(tmp_path / "plain"), lambda row: advantages[row])
    plain = make_learner(policy64, **CRITIC | {"critic": None}).execute(order)
    torch.testing.assert_close(weights(with_critic), weights(plain), rtol=1e-9, atol=1e-9)
    assert with_critic.metrics["critic/value"] == 0


@pytest.mark.more
@pytest.mark.parametrize("estimate", [GAE, BILEVEL])
def test_a_critic_learns_to_explain_the_returns(policy64: Path, tmp_path: Path, estimate: AdvantageSettings) -> None:
    results = run_of(make_learner(policy64, **CRITIC | {"lr": 1e-9, "critic": {"lr": 1e-2}}), tmp_path, estimate, range(6))
    losses = [result.metrics["critic/loss"] for result in results]
    assert losses[-1] < 0.5 * losses[0]
    assert results[0].metrics["critic/explained_variance"] <= 1e-9
    assert results[-1].metrics["critic/explained_variance"] > 0.3
    assert results[-1].metrics["critic/lr"] == 1e-2


@pytest.mark.more
def test_a_critics_learning_rate_warms_up_by_itself(policy64: Path, tmp_path: Path) -> None:
    warm = CRITIC | {"critic": {"lr": 1e-2, "warmup_steps": 2}}
    results = run_of(make_learner(policy64, **warm), tmp_path, GAE, range(2))
    assert [result.metrics["critic/lr"] for result in results] == pytest.approx([5e-3, 1e-2])
    assert [result.metrics["update/lr"] for result in results] == [CRITIC["lr"]] * 2


def test_a_critic_whose_loss_is_not_finite_takes_no_step_while_the_policy_does(policy: Path, tmp_path: Path) -> None:
    learner = make_learner(policy, **CRITIC | {"dtype": "float32"})
    huge = update_lab.write_order(
        tmp_path, update_lab.make_trajectories(20), str(tmp_path / "out"), lambda row: 1e30 * (row % 2), estimator=GAE
    )
    result = learner.execute(huge)
    assert result.skipped == "critic: the loss is inf"
    assert (result.metrics["critic/skipped"], result.metrics["update/skipped"]) == (1, 0)
    before = load_file(policy / "model.safetensors")
    assert any(not torch.equal(value, before[name]) for name, value in weights(result).items())


@pytest.mark.more
def test_estimators_with_a_critic_act(policy64: Path, tmp_path: Path) -> None:
    made = {}
    for name, estimate in {
        "gae": GAE,
        "lam": AdvantageSettings(estimator="gae", gamma=1.0, lam=0.5),
        "bilevel": BILEVEL,
        "token": AdvantageSettings(estimator="bilevel_gae", token_lam=0.2),
        "returns": AdvantageSettings(estimator="bilevel_reinforce_pp"),
    }.items():
        made[name] = run_of(make_learner(policy64, **CRITIC), tmp_path / name, estimate, range(2))[1]
    names = list(made)
    assert not any(same(made[a], made[b]) for a in names for b in names if a < b)


@pytest.mark.more
def test_a_value_clip_acts_on_later_steps(policy64: Path, tmp_path: Path) -> None:
    several = CRITIC | {"loss": {"kind": "ppo"}, "epochs": 3}
    losses = []
    for clip in (None, 1e-4):
        learner = make_learner(policy64, **several | {"critic": {"lr": 1e-2, "value_clip": clip}})
        losses.append(run_of(learner, tmp_path / str(clip), GAE, range(1))[0].metrics["critic/loss"])
    assert losses[0] < losses[1]


@pytest.mark.more
def test_a_resumed_critic_is_bitwise_that_of_an_undisturbed_one(policy64: Path, tmp_path: Path) -> None:
    undisturbed = run_of(make_learner(policy64, **CRITIC), tmp_path, BILEVEL, range(4), out="a")
    resumed = run_of(make_learner(policy64, **CRITIC), tmp_path, BILEVEL, range(2, 4), undisturbed[1].checkpoint, "b")
    for left, right in zip(undisturbed[2:], resumed, strict=True):
        assert same(left, right)
        assert left.metrics["critic/loss"] == right.metrics["critic/loss"]
        assert left.metrics["critic/explained_variance"] == right.metrics["critic/explained_variance"]


@pytest.mark.more
def test_a_kl_in_the_reward_acts_once_the_policy_has_moved(policy64: Path, tmp_path: Path) -> None:
    fields = STEP | {"kl_in": "reward", "kl_estimator": "k1", "kl_coefficient": 0.5}
    with_kl = run_of(make_learner(policy64, **fields), tmp_path / "with", REINFORCE, range(2))
    without = run_of(make_learner(policy64, **STEP | {"kl_coefficient": 0}), tmp_path / "without", REINFORCE, range(2))
    torch.testing.assert_close(weights(with_kl[0]), weights(without[0]), rtol=1e-9, atol=1e-9)
    assert not same(with_kl[1], without[1])
    assert abs(with_kl[0].metrics["update/kl"]) < 1e-12 < abs(with_kl[1].metrics["update/kl"])
    assert with_kl[1].metrics["update/loss"] == with_kl[1].metrics["update/pg_loss"]
    for estimator in ("k2", "k3"):
        other = run_of(make_learner(policy64, **fields | {"kl_estimator": estimator}), tmp_path / estimator, REINFORCE, range(2))
        assert other[1].metrics["update/kl"] > 0
        assert not same(other[1], with_kl[1])


@pytest.mark.more
def test_orders_that_do_not_fit_the_settings_are_refused(policy64: Path, tmp_path: Path) -> None:
    critic = make_learner(policy64, **CRITIC)
    for learner, estimate, message in [
        (critic, None, "give the order rewards"),
        (critic, REINFORCE, "do not fit together"),
        (make_learner(policy64, **STEP), GAE, "do not fit together"),
    ]:
        with pytest.raises(UpdateError, match=message):
            run_of(learner, tmp_path, estimate, range(1))
    (without,) = run_of(make_learner(policy64, **STEP), tmp_path, REINFORCE, range(1), out="without")
    with pytest.raises(UpdateError, match="has no critic/"):
        run_of(critic, tmp_path, GAE, range(1, 2), without.checkpoint)
    assert run_of(critic, tmp_path, GAE, range(1), out="good")[0].skipped == ""
