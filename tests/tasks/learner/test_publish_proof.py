"""The proof after a publish, with a real SGLang server that computes in bfloat16: what is healthy passes, what is not is told."""

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from nbrl.agent.trajectory import Trajectory
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.manifest import part_digest
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.sglang_fleet import SglangFleet
from tests.tasks.engines import HereEngine
from tests.tasks.learner import update_lab
from tests.tasks.nodes.doubles import SCOPE, services

pytestmark = [pytest.mark.engine, pytest.mark.more]

ENGINE = EngineSettings(device="cpu", dtype="bfloat16", max_total_tokens=4096, request_timeout_s=60)
CHECKPOINT = "runs/r/checkpoints/000003"
Weights = dict[str, Tensor]


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose files hold bfloat16."""
    return update_lab.make_policy(tmp_path_factory.mktemp("policy"), torch.bfloat16)


@pytest.fixture(scope="module")
def engine(halved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HereEngine]:
    engine = HereEngine(ENGINE, halved, tmp_path_factory.mktemp("logs"))
    asyncio.run(engine.start([Served(None, "initial")]))
    yield engine
    engine.host.stop()


@pytest.fixture(scope="module")
def root(alone: None, halved: Path, engine: HereEngine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a storage with a checkpoint after one step on tokens whose log-probs are the engine's, in the numbers of the files.

    `full` beside it has the same weights in float32.
    """
    root, trajectories = tmp_path_factory.mktemp("root"), asyncio.run(scored(engine, update_lab.make_trajectories(1, 12)))
    for dtype, out in (("float32", root / "full"), ("stored", root / "storage" / CHECKPOINT)):
        out.parent.mkdir(parents=True, exist_ok=True)
        order = update_lab.write_order(root / dtype, trajectories, str(out), dtype=dtype)
        result = update_lab.make_learner(halved, lr=1e-2).execute(order)
    (root / "update.json").write_text(json.dumps({"proof": result.proof.model_dump(), "metrics": {}}))
    return root


def anew(engine: HereEngine) -> EngineClient:
    """A client of its own, for a loop of its own."""
    return EngineClient(engine.client.url, 60, engine.client.vocabulary_size, engine.client.key)


async def scored(engine: HereEngine, trajectories: list[Trajectory]) -> list[Trajectory]:
    """With the engine's log-probs of the sampled tokens."""
    async with anew(engine) as client:
        for each in trajectories:
            for index, node in enumerate(each.nodes):
                if node.kind == "sampled":
                    path = each.path(index)
                    node.logprobs = await client.score(path, len(path) - len(node.token_ids))
    return trajectories


def published(root: Path, halved: Path, engine: HereEngine, folder: Path, other: Path | None = None) -> Artifact:
    """What publish makes of the checkpoint, where the engine loads that at `other` if it is given."""

    class Misled(HereEngine):
        """Says where the weights are that are to be compared, but loads others."""

        asked = 0

        def __init__(self) -> None:
            self.__dict__ = engine.__dict__ | {"client": anew(engine)}

        async def path(self, weights: Served) -> Path | None:
            self.asked += 1
            return other / HF if other is not None and self.asked == 1 else await engine.path(weights)

    async def work() -> Artifact:
        misled = Misled()
        async with misled.client:
            made = services(folder, SglangFleet([misled], Served(None, "initial")))
            made.config = made.config.model_copy(update={"engine": ENGINE})
            shutil.copytree(root / "storage", folder / "storage", dirs_exist_ok=True)
            result = SCOPE.layout.update_result
            made.storage.write_bytes(result, (root / "update.json").read_bytes())
            digest = part_digest(made.storage.read_manifest(CHECKPOINT), f"{HF}/")
            return await publish.alone(made, SCOPE, Artifact(path=CHECKPOINT, digest=digest, parts={result: "x"}))

    return asyncio.run(work())


def changed(source: Path, target: Path, change: Callable[[str, Tensor], Tensor]) -> Path:
    """A checkpoint with the weights of another one, changed one by one."""
    shutil.copytree(source / HF, target / HF)
    weights = {name: change(name, weight) for name, weight in load_file(source / HF / "model.safetensors").items()}
    save_file(weights, target / HF / "model.safetensors", {"format": "pt"})
    return target


def test_a_healthy_step_in_bfloat16_passes(root: Path, halved: Path, engine: HereEngine, tmp_path: Path) -> None:
    values = published(root, halved, engine, tmp_path).values
    assert values["publish/tensors_proved"] == 18
    assert values["publish/mismatch_tokens"] > 100
    assert 1e-4 < values["publish/mismatch_mean_abs"] < values["publish/mismatch_p99_abs"]
    assert values["publish/mismatch_ratio"] < 2


def test_stale_half_loaded_and_wrongly_rounded_weights_are_told(
    root: Path, halved: Path, engine: HereEngine, tmp_path: Path
) -> None:
    new, old = load_file(root / "storage" / CHECKPOINT / HF / "model.safetensors"), load_file(halved / "model.safetensors")
    late = "model.layers.1.mlp.down_proj.weight"
    others = {
        "stale": changed(root / "full", tmp_path / "stale", lambda name, _: old[name]),
        "half": changed(root / "full", tmp_path / "half", lambda name, _: (old if name == late else new)[name]),
        "truncated": changed(root / "full", tmp_path / "truncated", lambda _, weight: truncated(weight)),
    }
    for name, other in others.items():
        with pytest.raises(
            BrokenInvariantError, match=f"not bit for bit those of {CHECKPOINT}/hf .* differ, so they are"
        ) as told:
            published(root, halved, engine, tmp_path / "publish" / name, other)
        assert (late in str(told.value)) == (name == "half")


def truncated(weight: Tensor) -> Tensor:
    return (weight.view(torch.int32) & -(1 << 16)).view(torch.float32).bfloat16()


def test_files_in_float32_are_compared_as_the_engine_rounds_them(
    root: Path, halved: Path, engine: HereEngine, tmp_path: Path
) -> None:
    assert published(root, halved, engine, tmp_path, root / "full").values["publish/tensors_proved"] == 18


def test_files_that_are_not_the_trainers_weights_are_found_by_their_log_probs(
    root: Path, halved: Path, engine: HereEngine, tmp_path: Path
) -> None:
    spoilt = tmp_path / "root"
    shutil.copytree(root, spoilt)
    shutil.rmtree(spoilt / "storage" / CHECKPOINT / HF)
    changed(root / "storage" / CHECKPOINT, spoilt / "storage" / CHECKPOINT, lambda name, weight: weight * 1.3)
    with pytest.raises(
        BrokenInvariantError, match=r"log-probs of .* differ .* bit for bit the published files, so the files are"
    ):
        published(spoilt, halved, engine, tmp_path / "publish")


@pytest.mark.usefixtures("root")
def test_log_probs_from_a_token_on_are_those_of_the_whole(engine: HereEngine) -> None:
    async def both() -> tuple[list[float], list[float]]:
        async with anew(engine) as client:
            return await client.score(range(40)), await client.score(range(40), 30)

    whole, end = asyncio.run(both())
    assert len(end) == 10
    assert whole[29:] == pytest.approx(end, abs=0.05)
