"""A teacher's log-probs through the learner, and the step that learns from them, against the formula."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from nbrl.agent.trajectory import Trajectory
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.batch.token_logprobs import TOKEN_LOGPROBS_SCHEMA
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, TeachOrder, UpdateOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab
from tests.tasks.learner.test_learning import PLAIN, assert_stepped_to, naive_steps, token_mean

pytestmark = pytest.mark.usefixtures("alone")

LOSS = {"kind": "distill", "teacher": "t", "reward": 0.5}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of another family, with the policy's vocabulary."""
    folder = tmp_path_factory.mktemp("teacher")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=update_lab.VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.4,
    )
    LlamaForCausalLM(config).to(torch.float64).save_pretrained(folder)
    return folder


def learner_of(policy: Path, teacher: Path | None, **fields: Any) -> Learner:
    placed = None if teacher is None else PlacedFolder(str(teacher))
    places = Places(PlacedFolder(str(policy)), update_lab.STORAGE, teacher=placed)
    return Learner(UpdateSettings.model_validate(PLAIN | fields), places, torch.device("cpu"))


def to_teach(order: UpdateOrder) -> TeachOrder:
    return TeachOrder(trajectories=order.trajectories, advantages=order.advantages)


def taught_by(teacher: Path, trajectories: list[Trajectory]) -> list[list[float]]:
    lm = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float64).eval()
    with torch.no_grad():
        return [each.tolist() for trajectory in trajectories for each in update_lab.action_logprobs(lm, trajectory)]


def test_a_teacher_scores_the_sampled_tokens_and_the_step_is_that_of_the_formula(
    policy64: Path, teacher: Path, tmp_path: Path
) -> None:
    trajectories = update_lab.sample_as(policy64, update_lab.make_trajectories(11), 0.4)
    learner = learner_of(policy64, teacher, loss=LOSS)
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"))
    table = learner.teach(to_teach(order))
    expected = taught_by(teacher, trajectories)
    for row, logprobs in zip(table.to_pylist(), expected, strict=True):
        assert row["logprobs"] == pytest.approx(logprobs, abs=1e-5)
    pq.write_table(table, tmp_path / "teacher.parquet")
    stored = StoredTable(key=update_lab.key(tmp_path / "teacher.parquet"))
    result = learner.execute(order.model_copy(update={"teacher": stored}))
    said = iter([torch.tensor(row["logprobs"], dtype=torch.float64) for row in table.to_pylist()])

    def distilled(logp: Tensor, old: Tensor, engine: Tensor, advantage: float) -> Tensor:
        return -(0.5 * advantage + (next(said) - logp.detach()).clamp(-10, 10)) * logp

    assert_stepped_to(naive_steps(policy64, trajectories, distilled, token_mean, 1), result, policy64)
    tokens = [
        old - new
        for row, old in zip(table.to_pylist(), _of_policy(policy64, trajectories), strict=True)
        for old, new in zip(old, row["logprobs"], strict=True)
    ]
    assert result.metrics["update/teacher_kl"] == pytest.approx(sum(tokens) / len(tokens), abs=1e-6)


def _of_policy(policy: Path, trajectories: list[Trajectory]) -> list[list[float]]:
    return taught_by(policy, trajectories)


def test_an_order_without_what_the_teacher_says_of_every_token_is_refused(policy64: Path, teacher: Path, tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(3, 2), str(tmp_path / "out"))
    learner = learner_of(policy64, teacher, loss=LOSS)
    with pytest.raises(UpdateError, match="needs the log-probs of its teacher"):
        learner.execute(order)
    table = learner.teach(to_teach(order))
    spoilt = {
        "less": table.slice(1),
        "short": pa.Table.from_pylist(
            [{**row, "logprobs": row["logprobs"][1:]} for row in table.to_pylist()], schema=table.schema
        ),
        "nan": pa.Table.from_pylist(
            [{**row, "logprobs": [float("nan")] * len(row["logprobs"])} for row in table.to_pylist()], schema=table.schema
        ),
        "other": table.select(TOKEN_LOGPROBS_SCHEMA.names[:2]),
    }
    for name, wrong in spoilt.items():
        pq.write_table(wrong, tmp_path / f"{name}.parquet")
        with pytest.raises(UpdateError, match="the teacher"):
            learner.execute(order.model_copy(update={"teacher": StoredTable(key=update_lab.key(tmp_path / f"{name}.parquet"))}))


def test_without_a_teacher_nothing_is_taught(policy64: Path, tmp_path: Path) -> None:
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(3, 2), str(tmp_path / "out"))
    with pytest.raises(UpdateError, match="the learner has no teacher"):
        learner_of(policy64, None).teach(to_teach(order))
