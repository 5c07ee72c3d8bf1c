"""LoRA published as it is: a real SGLang server on the CPU serves adapters beside the weights that they began from."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

from nbrl.agent.errors import PolicyError
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.client import ADAPTER, EngineClient
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import PublishError
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateResult
from nbrl.tasks.learner.settings import LoraSettings, UpdateSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.sglang_fleet import SglangFleet, adapter_room
from nbrl.tasks.services.weight_broadcast import WeightBroadcast
from tests.tasks.engines import HereEngine
from tests.tasks.learner import update_lab
from tests.tasks.learner.sending_lab import SendingRank

pytestmark = pytest.mark.engine

LORA = LoraSettings(rank=2, publish="adapter")


def configured(policy: Path, **lora: object) -> RunConfig:
    config = load("tiny-cpu")
    update = config.update.model_copy(update={"lora": LORA.model_copy(update=lora)})
    return config.model_copy(update={"update": update, "policy": config.policy.model_copy(update={"path": str(policy)})})


def two_updates(policy: Path, folder: Path) -> list[UpdateResult]:
    settings, results, before = UpdateSettings(workers=1, lr=0.1, lora=LORA), list[UpdateResult](), None
    learner = Learner(settings, update_lab.places(policy), torch.device("cpu"))
    for number in range(2):
        trajectories = update_lab.make_trajectories(1)
        order = update_lab.write_order(
            folder,
            trajectories,
            str(folder / str(number)),
            iteration=number,
            checkpoint_in=before,
            proof_token_ids=[5, *range(40)],
        )
        results.append(learner.execute(order))
        before = results[-1].checkpoint
    return results


def test_room_is_kept_for_adapters_alone(policy: Path) -> None:
    names = ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert adapter_room(configured(policy).update.lora, policy) == AdapterRoom(2, names)
    assert adapter_room(configured(policy, target_modules=("q_proj",)).update.lora, policy) == AdapterRoom(2, ("q_proj",))
    assert adapter_room(configured(policy, publish="merged").update.lora, policy) is None
    assert adapter_room(load("tiny-cpu").update.lora, policy) is None


@pytest.mark.usefixtures("alone")
def test_adapters_are_served_as_the_learner_computes_them(policy: Path, tmp_path: Path) -> None:
    config, results = configured(policy), two_updates(policy, tmp_path)
    canary = results[0].proof.sequences[0].token_ids
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60)
    engine = HereEngine(settings, policy, tmp_path / "logs", adapter_room(config.update.lora, policy))

    async def sampled(adapter: str | None, tokens: int) -> tuple[list[int], list[float], str]:
        async with engine_session(60) as session:
            made = await SglangPolicy(session, engine.client.url, [], Sampling(), adapter=adapter).generate(
                Prompt([canary], []), tokens, 0
            )
        return made.token_ids, made.logprobs, made.weights_version

    async def scenario() -> None:
        await engine.start(Served(None, "initial"))
        async with engine.client as client:
            fleet = SglangFleet([engine], Served(None, "initial"), adapters=True)
            await fleet.publish(None, "0")
            first = await client.score(canary)
            for number, result in enumerate(results):
                await fleet.publish(PlacedFolder(result.checkpoint, update_lab.STORAGE), str(number + 1))
                assert await client.score(canary) == pytest.approx(result.proof.sequences[0].logprobs, abs=1e-3)
                assert max(abs(a - b) for a, b in zip(first, result.proof.sequences[0].logprobs, strict=True)) > 0.1
                ids, logprobs, version = await sampled(client.adapter, 8)
                assert version == str(number + 1)
                assert (await client.score(canary + ids))[-len(ids) :] == pytest.approx(logprobs, abs=1e-3)
            engine.host.stop()
            await fleet.serve(None, "2")  # an engine that is started again has the adapter from its first request on
            assert (client.adapter, await client.weights_version()) == (ADAPTER, "2")
            assert await client.score(canary) == pytest.approx(results[1].proof.sequences[0].logprobs, abs=1e-3)
            assert (await sampled(client.adapter, 8))[2] == "2"
            busy = asyncio.create_task(sampled(client.adapter, 400))
            await asyncio.sleep(0.5)
            with pytest.raises(PublishError, match="weights 3 did not reach the engine"):
                await client.publish_adapter(tmp_path / "nowhere", "3")
            assert await client.weights_version() == "2"
            assert await client.score(canary) == pytest.approx(results[1].proof.sequences[0].logprobs, abs=1e-3)
            await fleet.publish(None, "4")
            assert await client.score(canary) == pytest.approx(first, abs=1e-4)
            await asyncio.wait([busy])
            assert busy.exception() is None or isinstance(busy.exception(), PolicyError)

    try:
        asyncio.run(scenario())
    finally:
        engine.host.stop()


@pytest.mark.usefixtures("alone")
def test_adapters_come_from_the_learner_without_their_files(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, results = configured(policy), two_updates(policy, tmp_path)
    proofs = [result.proof.sequences[0] for result in results]
    checkpoints = [PlacedFolder(result.checkpoint, update_lab.STORAGE) for result in results]
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60)
    engine = HereEngine(settings, policy, tmp_path / "logs", adapter_room(config.update.lora, policy))
    rank, said = SendingRank(), list[str]()
    source = WeightBroadcast(rank, 1, False, False, 60)

    async def scenario() -> None:
        await engine.start(Served(None, "0"))
        async with engine.client as client:
            fleet = SglangFleet([engine], Served(None, "0"), adapters=True, say=said.append)
            with monkeypatch.context() as patch:
                patch.delattr(EngineClient, "publish_adapter")
                for number, checkpoint in enumerate(checkpoints):
                    await fleet.publish(checkpoint, str(number + 1), source)
                    assert (client.adapter, await client.weights_version()) == (ADAPTER, str(number + 1))
                    assert await client.score(proofs[number].token_ids) == pytest.approx(proofs[number].logprobs, abs=1e-3)
            assert said == []
            checkpoint, config_file = tmp_path / "spoilt", tmp_path / "spoilt/adapter/adapter_config.json"
            shutil.copytree(tmp_path / "1", checkpoint)
            config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"r": 64}))
            with pytest.raises(UpdateError, match=r"rank 0 could not send an adapter: the engine at .* answered"):
                await source.adapter([client], str(checkpoint), "4")
            await client.publish_adapter(tmp_path / "1/adapter", "2", torn=True)
            assert await client.score(proofs[1].token_ids) == pytest.approx(proofs[1].logprobs, abs=1e-3)
            rank.close()
            await fleet.publish(checkpoints[0], "3", source)
            assert "weights 3 did not go from the learner to the engines, which load them from the storage: " in said[0]
            assert await client.score(proofs[0].token_ids) == pytest.approx(proofs[0].logprobs, abs=1e-3)

    try:
        asyncio.run(scenario())
    finally:
        engine.host.stop()
        rank.close()
