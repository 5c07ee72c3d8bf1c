"""What a node spends: processor time of this machine's tree, and the GPUs that it holds."""

import pytest

from nbrl.tasks.metrics import reduce
from nbrl.tasks.nodes.durable import gpus_of, metrics
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.scope import Artifact


@pytest.mark.parametrize(
    ("node", "used"), [("sample", 0), ("rollout", 2), ("reward", 0), ("advantage", 0), ("update", 3), ("publish", 2)]
)
def test_the_engines_gpus_count_while_they_sample_and_the_learners_while_it_learns(node: str, used: int) -> None:
    config = load("tiny-cpu", ["engine.device=cuda", "engine.count=2", "update.device=cuda", "update.workers=3"])
    assert gpus_of(node, config) == used
    auto = load("tiny-cpu", ["engine.device=auto", "engine.count=2", "update.device=auto", "update.workers=3"])
    assert gpus_of(node, auto, present=5) == used
    assert gpus_of(node, auto, present=0) == 0
    assert gpus_of(node, load("tiny-cpu", ["engine.device=cpu", "update.device=cpu"]), present=5) == 0


def test_the_learner_is_used_for_advantages_that_it_estimates() -> None:
    config = load("tiny-cpu", ["update.device=cuda", "update.workers=3", "advantage.estimator=gae"])
    assert gpus_of("advantage", config) == 3


def test_what_is_spent_is_summed_over_rounds_and_never_negative() -> None:
    assert metrics("rollout", 4.0, 2.5, 2) == {"cpu/rollout": 2.5, "gpu/rollout": 8.0}
    assert metrics("reward", 4.0, -0.1, 0) == {"cpu/reward": 0.0}
    rounds = [Artifact(path="", digest="").timed("rollout", 4.0, metrics("rollout", 4.0, 2.5, 2)) for _ in range(2)]
    assert reduce(each.metrics for each in rounds) == {"time/rollout": 8.0, "cpu/rollout": 5.0, "gpu/rollout": 16.0}
