"""LoRA published as it is: a real SGLang server on the CPU serves adapters beside the weights that they began from."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.client import EngineClient, adapter_name
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.settings import EngineSettings, headers
from nbrl.infra.errors import PublishError
from nbrl.infra.node_cache import PlacedFolder
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

pytestmark = [pytest.mark.engine, pytest.mark.more]

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
    assert adapter_room(configured(policy).update.lora, policy, 0) == AdapterRoom(2, names)
    assert adapter_room(configured(policy).update.lora, policy, 2) == AdapterRoom(2, names, count=3)
    assert adapter_room(configured(policy, target_modules=("q_proj",)).update.lora, policy, 0) == AdapterRoom(2, ("q_proj",))
    assert adapter_room(configured(policy, publish="merged").update.lora, policy, 0) is None
    assert adapter_room(load("tiny-cpu").update.lora, policy, 0) is None


@pytest.mark.usefixtures("alone")
def test_adapters_are_served_as_the_learner_computes_them(policy: Path, tmp_path: Path) -> None:
    config, results = configured(policy), two_updates(policy, tmp_path)
    canary = results[0].proof.sequences[0].token_ids
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60)
    engine = HereEngine(settings, policy, tmp_path / "logs", adapter_room(config.update.lora, policy, 2))
    fleet = SglangFleet([engine], Served(None, "0"), adapters=3)

    async def sampled(version: str, tokens: int) -> tuple[list[int], list[float], str]:
        (address,) = fleet.addresses(version)
        async with engine_session(60, headers(address.key)) as session:
            policy = SglangPolicy(session, address.url, [], Sampling(), adapter=address.adapter, version=address.version)
            made = await policy.generate(Prompt([canary], []), tokens, 0)
        return made.token_ids, made.logprobs, made.weights_version

    async def left(requests: asyncio.Future[Any]) -> None:
        """Clients go before they are answered, some of them before their turn."""
        await asyncio.sleep(1)
        requests.cancel()
        await asyncio.wait([requests])
        await asyncio.sleep(6)  # the engine looks after its clients every 4 s

    async def scored(version: str, ids: list[int]) -> list[float]:
        return await engine.client.score(ids, adapter=fleet.addresses(version)[0].adapter)

    async def scenario() -> None:
        await engine.start([Served(None, "0")])
        async with engine.client as client:
            first = await scored("0", canary)
            busy = asyncio.create_task(sampled("0", 400))
            for number, result in enumerate(results):
                version = str(number + 1)
                await fleet.publish(PlacedFolder(result.checkpoint, update_lab.STORAGE), version)
                assert await client.weights_version() == version
                assert await scored(version, canary) == pytest.approx(result.proof.sequences[0].logprobs, abs=1e-3)
                assert max(abs(a - b) for a, b in zip(first, result.proof.sequences[0].logprobs, strict=True)) > 0.1
            samples = await asyncio.gather(*(sampled(version, 8) for version in "012"))  # in one batch
            for (ids, logprobs, version), asked in zip(samples, "012", strict=True):
                assert version == asked
                assert (await scored(asked, canary + ids))[-len(ids) :] == pytest.approx(logprobs, abs=1e-3)
            ids, logprobs, _ = await busy  # no publish disturbed it
            assert (await scored("0", canary + ids))[-len(ids) :] == pytest.approx(logprobs, abs=1e-3)
            engine.host.stop()  # an engine that is started again has its adapters from its first request on
            await fleet.serve(PlacedFolder(results[1].checkpoint, update_lab.STORAGE), "2")
            assert await client.weights_version() == "2"
            for number, result in enumerate(results):
                assert await scored(str(number + 1), canary) == pytest.approx(result.proof.sequences[0].logprobs, abs=1e-3)
            busy = asyncio.create_task(sampled("2", 400))
            await asyncio.sleep(0.5)
            with pytest.raises(PublishError, match="weights 3 did not reach the engine"):
                await fleet.publish(PlacedFolder(str(tmp_path / "nowhere")), "3")
            assert await client.weights_version() == "2"
            assert len((await busy)[0]) == 400
            await left(asyncio.gather(*(sampled("1", 400) for _ in range(24))))
            await asyncio.wait_for(fleet.publish(None, "4"), 30)  # drops 1, which nobody uses any more
            assert await scored("4", canary) == pytest.approx(first, abs=1e-4)
            await asyncio.wait_for(fleet.publish(PlacedFolder(results[0].checkpoint, update_lab.STORAGE), "5"), 30)

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
    engine = HereEngine(settings, policy, tmp_path / "logs", adapter_room(config.update.lora, policy, 0))
    rank, said = SendingRank(), list[str]()
    source = WeightBroadcast(rank, 1, False, False, 60)

    async def scenario() -> None:
        await engine.start([Served(None, "0")])
        async with engine.client as client:
            fleet = SglangFleet([engine], Served(None, "0"), adapters=1, say=said.append)
            with monkeypatch.context() as patch:
                patch.delattr(EngineClient, "load_adapter")
                for number, checkpoint in enumerate(checkpoints):
                    await fleet.publish(checkpoint, str(number + 1), source)
                    assert await client.weights_version() == str(number + 1)
                    name = adapter_name(str(number + 1))
                    found = await client.score(proofs[number].token_ids, adapter=name)
                    assert found == pytest.approx(proofs[number].logprobs, abs=1e-3)
            assert said == []
            checkpoint, config_file = tmp_path / "spoilt", tmp_path / "spoilt/adapter/adapter_config.json"
            shutil.copytree(tmp_path / "1", checkpoint)
            config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"r": 64}))
            with pytest.raises(UpdateError, match=r"rank 0 could not send an adapter: the engine at .* answered"):
                await source.adapter([client], str(checkpoint), "4")
            found = await client.score(proofs[1].token_ids, adapter=adapter_name("2"))  # it serves on what it had
            assert found == pytest.approx(proofs[1].logprobs, abs=1e-3)
            rank.close()
            await fleet.publish(checkpoints[0], "3", source)
            assert "weights 3 did not go from the learner to the engines, which load them from the storage: " in said[0]
            found = await client.score(proofs[0].token_ids, adapter=adapter_name("3"))
            assert found == pytest.approx(proofs[0].logprobs, abs=1e-3)

    try:
        asyncio.run(scenario())
    finally:
        engine.host.stop()
        rank.close()
