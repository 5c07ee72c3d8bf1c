"""What could not act is refused, in a sentence that says why."""

from typing import Any

import pytest
from pydantic import ValidationError

from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.places import on_cuda
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load

PPO = {"kind": "ppo"}


TWO_AT_ONCE = ["pipeline.lag=2", "update.tis.kind=truncate", "update.lora.publish=adapter"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"epochs": 2}, "policy_gradient takes one step per batch"),
        ({"minibatches": 2}, "policy_gradient takes one step per batch"),
        ({"loss": {"kind": "policy_gradient", "clip_low": 0.1}}, "clip_low"),
        ({"loss": {"kind": "gspo", "dual_clip": 3.0}}, "dual_clip"),
        ({"loss": {"kind": "cispo", "dual_clip": 3.0}}, "dual_clip"),
        ({"loss": PPO | {"old": "engine"}, "tis": {"kind": "truncate"}}, "both correct for the engine"),
        ({"loss": PPO | {"old": "interpolated"}}, "leaves the step from the engine's policy"),
        ({"loss": PPO | {"old": "interpolated"}, "tis": {"kind": "mask_trajectories"}}, "a pass that update.tis.kind"),
        ({"loss": PPO | {"old": "interpolated"}, "tis": {"kind": "truncate"}, "kl_in": "reward"}, "a pass that kl_in"),
        ({"aggregation": "fixed_length"}, "needs the number fixed_length"),
        ({"critic": {"value_clip": 0.2}}, "value_clip has no effect"),
        ({"kl_estimator": "k1"}, "k1 in the loss"),
        ({"lr_schedule": "cosine"}, "needs lr_decay_steps"),
        ({"lr_schedule": "linear", "lr_decay_steps": 5, "warmup_steps": 5}, "above warmup_steps"),
        ({"tis": {"high": 2.0}}, "kind"),
        ({"tis": {"kind": "truncate", "low": 1.5}}, "less than 1"),
        ({"offload": ["reference"], "kl_coefficient": 0}, "which loads none"),
        ({"offload": ["reference"], "lora": {}}, "policy without adapters"),
        ({"offload": ["critic"]}, "'optimizer' or 'reference'"),
        ({"betas": (0.9, 1.0)}, "at least 0 and below 1"),
        ({"betas": (-0.1, 0.9)}, "at least 0 and below 1"),
        ({"loss": {"kind": "distill", "teacher": "t"}, "epochs": 2}, "distill takes one step per batch"),
        ({"loss": {"kind": "distill", "teacher": "t", "key": "KEY"}}, "key is for a served model"),
        ({"loss": {"kind": "distill", "teacher": "http://me:secret@host"}}, "without a name or password"),
        ({"loss": {"kind": "distill", "teacher": "t", "reward": -1}}, "greater than or equal to 0"),
        ({"router_replay": True, "compile_layers": True}, "compile_layers forbids"),
        ({"lr": float("inf")}, "finite number"),
        ({"loss": PPO | {"dual_clip": float("inf")}}, "finite number"),
    ],
)
def test_settings_that_cannot_act_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        UpdateSettings.model_validate(fields)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["advantage.estimator=gae"], "set update.critic"),
        (["update.critic.lr=1e-4"], "has no use for update.critic"),
        (["update.loss={kind: distill, teacher: t}"], "set select.drop_rate to 0"),
        (
            ["update.loss={kind: distill, teacher: t, reward: 0}", "select.drop_rate=0", "advantage.estimator=grpo"],
            "advantage.estimator would have no effect",
        ),
        (["select.pools={}", "select.retire_at=0.9"], "both say what is asked again"),
        ([*TWO_AT_ONCE, "select.pools={}"], "select.pools to null"),
        (["update.router_replay=true"], "has no experts whose choice could be replayed"),
        (["update.loss.kind=ppo"], "nothing to clip"),
        (["update.loss.kind=gspo"], "nothing to clip"),
        (["update.loss.kind=cispo"], "nothing to clip"),
        (["update.loss.kind=ppo", "update.minibatches=257"], "only 256 trajectories"),
        (["rollout.horizon={steps: [1, 2], every: 5}"], r"ends with 2, but agent\.max_steps is 4"),
        (["select.resample_to=4"], "a group has only 4 trajectories"),
        (["select.resample_to=2", "update.loss.kind=ppo", "update.minibatches=129"], "only 128 trajectories"),
        (["pipeline.lag=1"], "nothing corrects for it"),
        (["pipeline.lag=1", "pipeline.uncorrected=true", "update.tis.kind=truncate"], r"but update\.tis or update\.loss\.old"),
        (["update.loss.kind=ppo", "update.loss.old=interpolated", "update.tis.kind=truncate"], r"and pipeline\.lag is 0"),
        (["pipeline.lag=1", "update.tis.kind=truncate", "checkpoints.keep_last=1"], "needs 2"),
        (["pipeline.lag=2", "update.tis.kind=truncate"], r"set update\.lora\.publish to adapter"),
        ([*TWO_AT_ONCE, "select.max_rounds=2"], r"set select\.max_rounds to 1"),
        ([*TWO_AT_ONCE, "select.retire_at=0.9"], r"set select\.retire_at to null"),
    ],
)
def test_rooms_that_do_not_fit_together_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load("tiny-cpu", overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        ["update.loss.kind=ppo", "update.minibatches=4", "update.tis.kind=mask_tokens"],
        ["update.loss.kind=gspo", "update.loss.old=engine"],
        ["advantage.estimator=bilevel_gae", "advantage.lam=1", "update.critic.lr=1e-4"],
        ["advantage.estimator=dr_grpo", "update.aggregation=fixed_length", "update.fixed_length=200"],
        ["update.kl_in=reward", "update.kl_estimator=k1"],
        ["pipeline.lag=1", "update.tis.kind=mask_trajectories"],
        ["pipeline.lag=1", "update.loss.kind=cispo", "update.loss.old=engine"],
        ["pipeline.lag=1", "update.loss.kind=ppo", "update.loss.old=interpolated", "update.tis.kind=truncate"],
        ["pipeline.lag=1", "pipeline.uncorrected=true"],
        ["advantage.per_ability=true"],
        ["update.lr_schedule=cosine", "update.lr_decay_steps=100"],
        ["update.lora={}"],
        ["update.lora.rank=8", "update.lora.alpha=8", "update.lora.target_modules=[q_proj, v_proj]"],
        [
            "ray.num_gpus=2",
            "update.device=auto",
            "update.offload=[optimizer, reference]",
            "update.activation_checkpointing=true",
            "update.deterministic=true",
        ],
    ],
)
def test_what_acts_is_accepted_and_survives_being_written_down(overrides: list[str]) -> None:
    config = load("tiny-cpu", overrides)
    check_config(config)
    assert type(config).model_validate(config.model_dump(mode="json")) == config


def test_devices_are_those_that_every_rank_can_have() -> None:
    two, cuda = UpdateSettings(workers=2), UpdateSettings(workers=2, device="cuda")
    assert on_cuda(two, gpus=2)
    assert not on_cuda(two, gpus=0)
    assert not on_cuda(UpdateSettings(workers=2, device="cpu"), gpus=2)
    assert on_cuda(cuda, gpus=2)
    assert on_cuda(cuda, gpus=0, grows=True)
    for settings, gpus, grows in ((two, 1, False), (two, 1, True), (cuda, 1, False), (cuda, 0, False)):
        with pytest.raises(
            UpdateError, match=r"need a GPU each, and there are .: lower update\.workers, or set update\.device to cpu"
        ):
            on_cuda(settings, gpus, grows)


def test_float64_is_refused_on_a_gpu() -> None:
    assert not on_cuda(UpdateSettings(workers=1, dtype="float64"), gpus=0)
    with pytest.raises(UpdateError, match="float64 has no attention kernel on a GPU"):
        on_cuda(UpdateSettings(workers=1, dtype="float64"), gpus=1)


@pytest.mark.parametrize(
    "overrides",
    [
        ["ray.num_gpus=0", "update.device=cuda"],
        ["ray.num_gpus=1", "update.device=auto"],
        ["ray.num_gpus=0", "update.device=auto", "update.offload=[optimizer]"],
    ],
)
def test_devices_that_our_own_cluster_lacks_are_refused_before_it_starts(overrides: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"update\.(workers 2 need a GPU each|offload optimizer moves state)"):
        check_config(load("tiny-cpu", overrides))
    joined = [each for each in overrides if not each.startswith("ray.")]
    check_config(load("tiny-cpu", [*joined, "ray.address=somewhere:1", "storage.shared=true"]))


def test_offload_is_refused_where_there_is_nothing_to_move_off() -> None:
    settings = UpdateSettings(workers=2, offload=("optimizer", "reference"))
    with pytest.raises(UpdateError, match="runs on the CPU: leave it out, or add GPUs"):
        on_cuda(settings, gpus=0)
    assert on_cuda(settings, gpus=2)
