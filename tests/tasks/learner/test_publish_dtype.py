"""Weights are published in the numbers in which the engine computes, so that a small step reaches it."""

import asyncio
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from nbrl.infra.engine.server import launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateResult
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.runs.recipes import load
from tests.tasks.learner import update_lab

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose files hold bfloat16."""
    return update_lab.make_policy(tmp_path_factory.mktemp("policy"), torch.bfloat16)


def step(policy: Path, folder: Path, lr: float, dtype: str) -> UpdateResult:
    learner = Learner(UpdateSettings(workers=1, lr=lr), update_lab.places(policy), torch.device("cpu"))
    order = update_lab.write_order(
        folder, update_lab.make_trajectories(1), str(folder / "out"), proof_token_ids=[5, *range(40)], dtype=dtype
    )
    return learner.execute(order)


def changed(policy: Path, result: UpdateResult) -> float:
    """The share of the published weights that are other numbers than those of the folder."""
    before, after = load_file(policy / "model.safetensors"), update_lab.weights(result)
    numbers = [(before[name].float() != after[name].float()).flatten() for name in after]
    return float(torch.cat(numbers).float().mean())


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ([], "float32"),
        (["engine.device=cuda"], "stored"),
        (["engine.device=cuda", "engine.dtype=float32"], "float32"),
        (["publish.dtype=stored"], "stored"),
        (["engine.device=cuda", "publish.dtype=float32"], "float32"),
    ],
)
def test_weights_are_published_as_the_engine_computes(settings: list[str], dtype: str) -> None:
    assert load("tiny-cpu", settings).published_dtype == dtype


@pytest.mark.usefixtures("alone")
def test_a_small_step_of_a_policy_in_bfloat16_reaches_the_published_weights(halved: Path, tmp_path: Path) -> None:
    stored, full = (step(halved, tmp_path / dtype, 1e-6, dtype) for dtype in ("stored", "float32"))
    assert changed(halved, stored) < 0.05
    assert changed(halved, full) > 0.9
    kept, named = (json.loads((update_lab.place(each) / "hf/config.json").read_text())["dtype"] for each in (stored, full))
    assert (kept, named) == ("bfloat16", "float32")


@pytest.mark.more
@pytest.mark.usefixtures("alone")
def test_an_engine_on_the_cpu_serves_what_the_trainer_has_of_a_policy_in_bfloat16(halved: Path, tmp_path: Path) -> None:
    results = {dtype: step(halved, tmp_path / dtype, 1e-2, dtype) for dtype in ("stored", "float32")}
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60)
    (engine,) = wait([launch(settings, halved, tmp_path / "logs")])

    async def error(result: UpdateResult, version: str) -> float:
        async with engine.client() as client:
            await client.publish(update_lab.place(result) / "hf", version)
            scored = await client.score(result.proof.sequences[0].token_ids)
        return max(abs(a - b) for a, b in zip(scored, result.proof.sequences[0].logprobs, strict=True))

    async def errors() -> dict[str, float]:
        return {dtype: await error(result, dtype) for dtype, result in results.items()}

    try:
        found = asyncio.run(errors())
    finally:
        engine.stop()
    assert found["float32"] < 1e-4 < found["stored"]
