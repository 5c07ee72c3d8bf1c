"""Settings of a stream: what is in flight by default, and what is refused."""

import pytest

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.plan import plan
from nbrl.tasks.runs.recipes import load

STREAM = ["pipeline.stream=true", "pipeline.lag=2", "update.tis.kind=mask_tokens", "select.max_rounds=1"]


def settings(*overrides: str) -> RunConfig:
    return load("tiny-cpu", [*STREAM, "rollout.prompts=5", *overrides])


@pytest.mark.parametrize(("lag", "groups"), [(1, 5), (2, 8), (3, 10), (4, 13)])
def test_half_of_one_batch_more_than_the_lag_is_in_flight(lag: int, groups: int) -> None:
    config = settings(f"pipeline.lag={lag}", f"checkpoints.keep_last={lag + 1}")
    check_config(config)
    assert config.groups_in_flight == groups
    assert f"{groups} groups are sampled at once" in plan(config, every=False)


def test_evaluations_beside_a_stream_have_runners_of_their_own() -> None:
    assert settings("evaluate.every=0").pools == 1
    assert settings("evaluate.every=2").pools == 2


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["pipeline.lag=0"], "pipeline.stream has no effect where pipeline.lag is not set"),
        (
            ["pipeline.in_flight=4"],
            "pipeline.in_flight is 4, where a batch has 5 groups and pipeline.lag is 2; set it from 5 to 10",
        ),
        (["pipeline.in_flight=11"], "set it from 5 to 10"),
        (["pipeline.mixed=2"], "no more than pipeline.lag 2 updates come in the middle"),
        (["select.max_rounds=2"], "pipeline.stream is true, so that a batch begins before it is known"),
        (["select.retire_at=0.9"], "set select.retire_at to null, or pipeline.stream to false"),
        (["update.lora.publish=adapter", "pipeline.mixed=1"], "a trajectory keeps the weights that it began with"),
        (["update.lora.publish=adapter", "pipeline.admit=finish"], "engines keep no adapter so old"),
        (["rollout.branch={at: uniform}", "advantage.estimator=vine"], "rollout.branch goes by batches"),
        (["rollout.horizon={steps: [2, 4], every: 3}"], "rollout.horizon goes by batches"),
        (["update.loss.old=interpolated", "update.tis=null"], "update.loss.old"),
        (["update.tis=null"], "nothing corrects for it"),
    ],
)
def test_what_goes_by_batches_or_cannot_be_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_config(settings(*overrides))
    assert words in str(refused.value)


@pytest.mark.parametrize("setting", ["admit=finish", "in_flight=6", "mixed=0"])
def test_a_setting_of_a_stream_is_refused_without_one(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"has no effect where pipeline\.stream is not set"):
        check_config(settings("pipeline.stream=false", f"pipeline.{setting}"))
