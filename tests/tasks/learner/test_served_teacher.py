"""A teacher behind a real SGLang server scores as the learner would that holds it."""

import asyncio
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from nbrl.infra.engine.server import EngineServer
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import TeachOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import DistillLoss, UpdateSettings
from nbrl.tasks.model_folder.source import PolicySettings
from nbrl.tasks.services.served_teacher import served_logprobs
from tests.tasks.learner import update_lab

TINY = Path(__file__).parents[3] / "infra/policies/tiny"

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("alone")]


@pytest.fixture
def order(tmp_path: Path) -> TeachOrder:
    written = update_lab.write_order(tmp_path, update_lab.make_trajectories(11), str(tmp_path / "out"))
    return TeachOrder(trajectories=written.trajectories, advantages=written.advantages)


def asked(server: EngineServer, policy: Path, order: TeachOrder, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    monkeypatch.setenv("TEACHER_KEY", server.key or "none")
    loss = DistillLoss(kind="distill", teacher=server.url, key="TEACHER_KEY")
    return asyncio.run(served_logprobs(loss, PolicySettings(path=str(policy)), order, update_lab.STORAGE))


def test_a_served_teacher_says_what_the_learner_computes_of_the_same_weights(
    tiny_engine: EngineServer, order: TeachOrder, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(PlacedFolder(str(TINY)), update_lab.STORAGE, teacher=PlacedFolder(str(TINY)))
    held = Learner(UpdateSettings(workers=1), places, torch.device("cpu")).teach(order)
    served = asked(tiny_engine, TINY, order, monkeypatch)
    assert served.select(["trajectory", "step"]).equals(held.select(["trajectory", "step"]))
    for mine, theirs in zip(held["logprobs"].to_pylist(), served["logprobs"].to_pylist(), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-3)


def test_a_served_teacher_with_other_tokens_is_refused(
    tiny_engine: EngineServer, order: TeachOrder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "policy"
    shutil.copytree(TINY, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    names = sorted(vocabulary, key=lambda name: vocabulary[name])
    tokenizer["model"]["vocab"] = dict(zip(names, [*range(1, len(names)), 0], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="has other tokens than the policy"):
        asked(tiny_engine, other, order, monkeypatch)
