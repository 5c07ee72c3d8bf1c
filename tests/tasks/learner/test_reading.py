"""What an order must hold before anything is trained on it."""

from pathlib import Path

import pytest
from transformers import Qwen3Config

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.batch import make_batch
from nbrl.tasks.learner.orders import UpdateOrder, read_tables
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab

MODEL = Qwen3Config(vocab_size=update_lab.VOCAB, max_position_embeddings=20)


def without_tokens(trajectory: Trajectory) -> Trajectory:
    """The same, but nothing was sampled in any step."""
    for sampled in trajectory.sampled():
        sampled.token_ids, sampled.logprobs = [], []
    return trajectory


def chain(length: int) -> Trajectory:
    """One path of so many tokens, the last three sampled."""
    trajectory = update_lab.make_trajectory(update_lab.rng(0), "chain", steps=1)
    nodes = trajectory.nodes[:4]  # system, task, tail, sampled
    for node, count in zip(nodes, (length - 5, 1, 1, 3), strict=True):
        node.token_ids = [1] * count
    nodes[3].logprobs = [-0.5] * 3
    return trajectory.model_copy(update={"nodes": nodes})


def read(order: UpdateOrder) -> int:
    """Tokens to train on."""
    return make_batch(read_tables(order, update_lab.STORAGE), order, UpdateSettings(workers=1), MODEL).forest.targets


def test_an_empty_selection_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="the batch is empty"):
        read(update_lab.write_order(tmp_path / "rows", [], str(tmp_path / "out")))
    silent = [without_tokens(each) for each in update_lab.make_trajectories(0, 2)]
    with pytest.raises(UpdateError, match="the batch is empty"):
        read(update_lab.write_order(tmp_path / "tokens", silent, str(tmp_path / "out")))


def test_a_trajectory_of_the_models_length_is_read_and_a_longer_one_refused(tmp_path: Path) -> None:
    assert read(update_lab.write_order(tmp_path / "20", [chain(20)], str(tmp_path / "out"))) == 3
    with pytest.raises(UpdateError, match="a trajectory has 21 tokens, the model takes 20"):
        read(update_lab.write_order(tmp_path / "21", [chain(21)], str(tmp_path / "out")))


@pytest.mark.parametrize("odd", [-1, update_lab.VOCAB])
def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path, odd: int) -> None:
    trajectory = chain(9)
    trajectory.nodes[1].token_ids = [odd]
    with pytest.raises(UpdateError, match=f"token id {odd} is outside"):
        read(update_lab.write_order(tmp_path, [trajectory], str(tmp_path / "out")))


@pytest.mark.parametrize("odd", [float("nan"), float("-inf")])
def test_log_probs_of_the_engine_that_are_not_finite_are_refused(tmp_path: Path, odd: float) -> None:
    trajectory = chain(9)
    trajectory.nodes[3].logprobs[1] = odd
    with pytest.raises(UpdateError, match="trajectory chain: sampled node 3 has a log-prob that is no finite number"):
        read(update_lab.write_order(tmp_path, [trajectory], str(tmp_path / "out")))
