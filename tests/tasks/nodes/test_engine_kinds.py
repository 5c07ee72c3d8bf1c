"""The seam between the loop and a kind of engine."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from nbrl.infra.engine.weight_group import Bucket, WeightComparison, WeightGroup
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder
from nbrl.tasks.learner.proof import Mismatch, Proof, ProofSequence
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.fleet import Finding, WeightSource
from nbrl.tasks.services.services import Training
from nbrl.tasks.services.weight_broadcast import WeightBroadcast
from tests.tasks.nodes.doubles import SCOPE, services

UPDATE = Artifact(path="runs/r/checkpoints/000003", digest="w", parts={SCOPE.layout.update_result: "x"})


class VllmEngine:
    """An engine of another kind: what a source of weights needs of it, and no more."""

    url, key, timeout = "vllm://1", "", 1.0
    version = "initial"

    async def receive(self, group: WeightGroup, buckets: Sequence[Bucket], version: str) -> WeightComparison:
        self.version = version
        return WeightComparison(equal=len(buckets))


class VllmFleet:
    """An EngineFleet of such engines, by its protocol alone."""

    reports_version = True

    def __init__(self) -> None:
        self.engines = [VllmEngine(), VllmEngine()]
        self.found: list[WeightComparison] = []

    def addresses(self, version: str) -> list[EngineAddress]:
        return [EngineAddress(each.url) for each in self.engines]

    async def lend_memory(self) -> None:
        """They have GPUs of their own."""

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        assert checkpoint
        assert source
        self.found = await source.weights(self.engines, checkpoint.place, version)

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        if any(each.version != version for each in self.engines):
            await self.publish(checkpoint, version)

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        assert all(each.version == version for each in self.engines)
        same = [0.0 for each in sequences for _ in each.logprobs]
        return [Finding(each.url, same, found) for each, found in zip(self.engines, self.found, strict=True)]

    def check_health(self) -> None:
        """They are well."""


class BucketLearner:
    """A learner that sends two buckets."""

    async def offer(self, order: OfferOrder) -> Offer:
        return Offer(address="127.0.0.1", port=1, cuda=False, buckets=[Bucket((name,), ((1,),), "float32") for name in "ab"])

    async def send(self, order: SendOrder) -> None:
        """They arrive at once."""

    async def send_adapter(self, order: AdapterOrder) -> None:
        raise AssertionError("no adapter is published")


def test_engines_of_another_kind_need_the_methods_of_a_fleet_alone(tmp_path: Path) -> None:
    fleet = VllmFleet()
    proof = Proof(
        sequences=[ProofSequence(token_ids=[1, 2, 3], first=1, logprobs=[-0.5, -0.5])], before=Mismatch(mean=0.05, high=0.2)
    )
    made = services(tmp_path, fleet)
    made._training = Training(made.learner, made.delivery, WeightBroadcast(BucketLearner(), 1, False, False, 5.0))
    made.storage.write_bytes(SCOPE.layout.update_result, json.dumps({"proof": proof.model_dump()}).encode())
    done = asyncio.run(publish.alone(made, SCOPE, UPDATE))
    assert [each.version for each in fleet.engines] == ["3", "3"]
    assert done.values["publish/tensors_proved"] == 2
