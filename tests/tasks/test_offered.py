"""What a cluster must offer for the parts of a run."""

import pytest

from nbrl.tasks.runs.recipes import load
from nbrl.tasks.services.offered import lacking

CPU = {"CPU": 2.0}
GPUS = {"CPU": 16.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("settings", "machines", "said"),
    [
        ([], [CPU, CPU], []),
        (["engine.resources={engine: 1}"], [CPU | {"engine": 1.0}, CPU], []),
        (
            ["engine.resources={engine: 2}"],
            [CPU | {"engine": 1.0}, CPU | {"engine": 1.0}],
            ["engine: the machines have room for 0 of 1 that take 2 of engine"],
        ),
        (
            ["rollout.resources={sandbox: 2}", "rollout.runners=2"],
            [CPU | {"sandbox": 1.0}, CPU | {"sandbox": 3.0}],
            ["rollout.resources: the machines have room for 1 of 2 that take 2 of sandbox"],
        ),
        (
            ["engine.device=cuda", "engine.count=8", "update.device=cpu"],
            [GPUS, GPUS],
            ["engine: the machines have room for 4 of 8 that take 1 of GPU"],
        ),
        (
            ["engine.device=cuda", "engine.tensor_parallel=4", "update.device=cpu"],
            [GPUS, GPUS],
            ["engine: the machines have room for 0 of 1 that take 4 of GPU"],
        ),
        (
            ["engine.device=cuda", "engine.count=2", "update.device=cuda", "update.workers=3"],
            [GPUS, GPUS],
            ["the machines offer 4 of GPU, and more is taken: 2 by engine and 3 by update"],
        ),
        (["engine.device=cuda", "engine.count=2", "update.device=cuda", "update.workers=2"], [GPUS], []),  # which they share
        (
            ["engine.resources={engine: 1}", "engine.machines=2", "engine.tensor_parallel=2", "engine.device=cpu"],
            [CPU | {"engine": 2.0}, CPU],
            ["engine.machines: 1 machines can hold a part of an engine of 2, which takes 1 of engine"],
        ),
        (["update.device=auto", "update.workers=3"], [GPUS, CPU], ["update.workers 3 need a GPU each, and there are 2"]),
    ],
)
def test_what_does_not_fit_is_said(settings: list[str], machines: list[dict[str, float]], said: list[str]) -> None:
    found = lacking(load("tiny-cpu", settings), machines)
    assert len(found) == len(said)
    for sentence, beginning in zip(found, said, strict=True):
        assert sentence.startswith(beginning)
