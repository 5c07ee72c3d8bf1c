"""What is said of a configuration before work starts."""

import re

import pytest

from nbrl.tasks.learner import settings
from nbrl.tasks.runs import config, plan, warnings
from nbrl.tasks.runs.config import BFLOAT16_NATS, FLOAT32_NATS
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.warnings import warnings_of


@pytest.fixture(autouse=True)
def free_mb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "available_mb", lambda: 64_000)
    monkeypatch.setattr(plan, "gpus", list)


def test_a_training_that_needs_more_memory_than_is_free_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warnings, "available_mb", lambda: 1000)
    (warning,) = warnings_of(Prepared.of(load("tiny-cpu"), None))
    assert re.fullmatch(r"the training takes about [\d.]+ GB of memory, and 1.05 GB are free; .*", warning)


def test_an_engine_in_bfloat16_on_a_cpu_is_warned_of() -> None:
    (warning,) = warnings_of(Prepared.of(load("tiny-cpu", ["engine.dtype=bfloat16"]), None))
    assert "0.05 nats" in warning
    assert warnings_of(Prepared.of(load("tiny-cpu"), None)) == []


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["pipeline.lag=1", "pipeline.uncorrected=true"], "nothing corrects for the age of the weights that sample"),
        (
            ["update.lr_schedule=linear", "update.lr_decay_steps=2", "iterations=7"],
            "linear ends at optimiser step 2 of 7: from there the learning rate is 0",
        ),
        (["advantage.estimator=max_rl"], "set reward.format, reward.execution and reward.length to 0"),
    ],
)
def test_settings_that_mean_something_only_beside_others_are_warned_of(overrides: list[str], said: str) -> None:
    (warning,) = warnings_of(Prepared.of(load("tiny-cpu", overrides), None))
    assert said in warning


def test_settings_that_go_together_are_not_warned_of() -> None:
    corrected = ["pipeline.lag=1", "update.tis.kind=mask_tokens"]
    binary = ["advantage.estimator=max_rl", "reward.format=0", "reward.execution=0"]
    assert warnings_of(Prepared.of(load("tiny-cpu", [*corrected, *binary]), None)) == []


@pytest.mark.parametrize(("able", "dtype", "count"), [(False, "bfloat16", 1), (True, "bfloat16", 0), (False, "auto", 0)])
def test_passes_in_bfloat16_on_a_processor_without_it_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, able: bool, dtype: str, count: int
) -> None:
    monkeypatch.setattr(warnings, "gpus", lambda: 0)
    monkeypatch.setattr(warnings, "computes_in_bfloat16", lambda: able)
    found = warnings_of(Prepared.of(load("tiny-cpu", [f"update.dtype={dtype}"]), None))
    assert len([each for each in found if "set update.dtype to auto or float32" in each]) == count


@pytest.mark.parametrize("able", [False, True])
def test_auto_passes_are_in_bfloat16_only_where_that_is_computed(monkeypatch: pytest.MonkeyPatch, able: bool) -> None:
    monkeypatch.setattr(settings, "computes_in_bfloat16", lambda: able)
    update = load("tiny-cpu", ["update.dtype=auto"]).update
    assert (update.passes_dtype(cuda=False), update.passes_dtype(cuda=True)) == ("bfloat16" if able else "float32", "bfloat16")
    monkeypatch.setattr(config, "gpus", lambda: 0)
    floor = BFLOAT16_NATS if able else FLOAT32_NATS
    assert load("tiny-cpu", ["update.dtype=auto"]).mismatch_floor == floor
    assert load("tiny-cpu", ["update.dtype=auto", "ray.address=a:1", "storage.root=s3://b"]).mismatch_floor == BFLOAT16_NATS


def test_an_engine_in_bfloat16_gets_weights_as_they_are_stored() -> None:
    assert load("tiny-cpu", ["engine.dtype=bfloat16"]).published_dtype == "stored"


@pytest.mark.parametrize("setting", ["engine.dtype=bfloat16", "update.dtype=bfloat16", "publish.dtype=stored"])
def test_sixteen_bits_anywhere_allow_a_larger_mismatch(setting: str) -> None:
    assert load("tiny-cpu").mismatch_floor == FLOAT32_NATS
    assert load("tiny-cpu", [setting]).mismatch_floor == BFLOAT16_NATS
