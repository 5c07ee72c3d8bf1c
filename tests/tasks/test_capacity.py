"""What a cluster must offer for the parts of a run."""

import pytest

from nbrl.tasks.runs.recipes import load
from nbrl.tasks.services.capacity import lacking

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
            ["engine.machines: an engine takes 1 of engine of each of 2 machines, and 1 can give it"],
        ),
        (["update.device=auto", "update.workers=3"], [GPUS, CPU], []),  # which the learner refuses itself
        (["update.resources={rank: 0.1}", "update.workers=3"], [CPU | {"rank": 0.3}], []),
    ],
)
def test_what_does_not_fit_is_said(settings: list[str], machines: list[dict[str, float]], said: list[str]) -> None:
    found = lacking(load("tiny-cpu", ["ray.address=a:1", *settings]), machines)
    assert len(found) == len(said)
    for sentence, beginning in zip(found, said, strict=True):
        assert sentence.startswith(beginning)
