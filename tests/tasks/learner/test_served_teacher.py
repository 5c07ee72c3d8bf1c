"""A teacher behind a real SGLang server scores as the learner would that holds it."""

import asyncio
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from nbrl.infra.engine.server import EngineServer
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import ConfigError, TeacherError, UpdateError
from nbrl.tasks.learner.batch.token_logprobs import check_scores
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import TeachOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import DistillLoss, UpdateSettings
from nbrl.tasks.model_folder.source import PolicySettings
from nbrl.tasks.services import served_teacher
from nbrl.tasks.services.served_teacher import check_served, served_logprobs
from tests.tasks.learner import update_lab

TINY = Path(__file__).parents[3] / "infra/policies/tiny"

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("alone")]


@pytest.fixture
def order(tmp_path: Path) -> TeachOrder:
    written = update_lab.write_order(tmp_path, update_lab.make_trajectories(11), str(tmp_path / "out"))
    return TeachOrder(trajectories=written.trajectories, advantages=written.advantages)


@pytest.fixture
def loss(tiny_engine: EngineServer, monkeypatch: pytest.MonkeyPatch) -> DistillLoss:
    monkeypatch.setenv("TEACHER_KEY", tiny_engine.key or "none")
    return DistillLoss(kind="distill", teacher=tiny_engine.url, key="TEACHER_KEY")


def test_a_served_teacher_says_what_the_learner_computes_of_the_same_weights(loss: DistillLoss, order: TeachOrder) -> None:
    asyncio.run(check_served(loss, PolicySettings(path=str(TINY))))
    places = Places(PlacedFolder(str(TINY)), update_lab.STORAGE, teacher=PlacedFolder(str(TINY)))
    held = Learner(UpdateSettings(workers=1), places, torch.device("cpu")).teach(order)
    served = asyncio.run(served_logprobs(loss, order, update_lab.STORAGE))
    assert served.select(["trajectory", "step"]).equals(held.select(["trajectory", "step"]))
    for mine, theirs in zip(held["logprobs"].to_pylist(), served["logprobs"].to_pylist(), strict=True):
        assert theirs == pytest.approx(mine, abs=1e-3)


def test_a_served_teacher_with_other_tokens_is_refused(loss: DistillLoss, tmp_path: Path) -> None:
    other = tmp_path / "policy"
    shutil.copytree(TINY, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    names = sorted(vocabulary, key=lambda name: vocabulary[name])
    tokenizer["model"]["vocab"] = dict(zip(names, [*range(1, len(names)), 0], strict=True))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="has other tokens than the policy"):
        asyncio.run(check_served(loss, PolicySettings(path=str(other))))


@pytest.mark.parametrize("reply", [b"[1]", b"{}", b"<html>", b'{"meta_info": {"input_token_logprobs": [[null, 1, null]]}}', b""])
def test_a_server_that_answers_otherwise_is_told_in_a_sentence(
    order: TeachOrder, reply: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_teacher, "WAITS_S", (0.0, 0.0))

    async def served() -> None:
        server = await asyncio.start_server(partial(_say, reply), "127.0.0.1", 0)
        async with server:
            loss = DistillLoss(kind="distill", teacher=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await served_logprobs(loss, order, update_lab.STORAGE)

    with pytest.raises(TeacherError, match=r"the teacher at http://127\.0\.0\.1:\d+ .* after 3 tries: "):
        asyncio.run(served())


async def _say(reply: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(reply), reply))
    await writer.drain()
    writer.close()


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf"), 5.0, 1e300, -1e300])
def test_what_is_no_log_prob_is_no_result(wrong: float) -> None:
    with pytest.raises(UpdateError, match="the teacher gives 1 of 2 tokens no log-prob"):
        check_scores(np.array([-1.0, wrong]), "the teacher")
