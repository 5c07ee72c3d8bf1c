"""Weights in buckets, who may send them, and where they are sent."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nbrl.infra.engine.weight_group import Bucket, WeightComparison, WeightGroup
from nbrl.infra.errors import EngineError, PublishError
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.checkpoint import buckets
from nbrl.tasks.learner.checkpoint.buckets import Buckets
from nbrl.tasks.learner.driver.sender import Sender
from nbrl.tasks.learner.orders import AdapterOrder, Offer, OfferOrder, SendOrder
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.services.weight_broadcast import WeightBroadcast
from tests.tasks.learner.sending_lab import opened

CPU = torch.device("cpu")


def test_buckets_hold_every_number_once_and_no_more_than_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BUCKET_BYTES", 100)
    files = [
        {"a": torch.randn(4, 5), "b": torch.randn(5), "c": torch.randn(3, dtype=torch.bfloat16), "huge": torch.randn(60)},
        {"d": torch.randn(()), "e": torch.randn(0, 3)},
    ]
    for number, tensors in enumerate(files):
        save_file(tensors, tmp_path / f"model-{number}.safetensors")
    planned = Buckets(tmp_path)
    found = {}
    for bucket, whole in zip(planned.all, planned.filled(CPU), strict=True):
        assert whole.dtype == torch.uint8
        assert len(whole) <= 100 or len(bucket.names) == 1
        dtype = getattr(torch, bucket.dtype)
        sizes = [torch.Size(shape).numel() * dtype.itemsize for shape in bucket.shapes]
        for name, shape, part in zip(bucket.names, bucket.shapes, whole.split(sizes), strict=True):
            found[name] = part.view(dtype).reshape(shape)
    expected = files[0] | files[1]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) and found[name].dtype == expected[name].dtype for name in expected)


def test_a_folder_without_weights_and_whole_numbers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UpdateError, match="holds no weights"):
        Buckets(tmp_path)
    save_file({"a": torch.ones(2, dtype=torch.int64)}, tmp_path / "model.safetensors")
    with pytest.raises(UpdateError, match=r"has a in I64, .* set publish\.via to storage"):
        Buckets(tmp_path)


def test_what_was_not_offered_cannot_be_sent_and_engines_that_do_not_come_are_not_waited_for(
    policy: Path, tmp_path: Path
) -> None:
    (tmp_path / "hf").symlink_to(policy)
    sender, order = Sender(opened, CPU), OfferOrder(checkpoint=str(tmp_path)[1:], cluster=False, limit_s=1)
    group = WeightGroup(name="w", address="127.0.0.1", port=1, backend="gloo", size=2, rank=0)
    with pytest.raises(UpdateError, match="has offered no weights"):
        sender.execute(SendOrder(group=group))
    offer = sender.execute(order)
    assert isinstance(offer, Offer)
    assert (offer.address, offer.cuda) == ("127.0.0.1", False)
    with pytest.raises(UpdateError, match="could not send all weights"):
        sender.execute(SendOrder(group=group))
    with pytest.raises(UpdateError, match="has offered no weights"):  # the failure withdrew it
        sender.execute(SendOrder(group=group))


class Learner:
    """Offers one bucket; `silent` never answers an order to send."""

    def __init__(self, cuda: bool = False, silent: bool = False) -> None:
        self.cuda, self.silent = cuda, silent

    async def offer(self, order: OfferOrder) -> Offer:
        return Offer(address="10.0.0.1", port=5, buckets=[Bucket(("a",), ((2,),), "float32")], cuda=self.cuda)

    async def send(self, order: SendOrder) -> None:
        await asyncio.sleep(1000 if self.silent else 0)

    async def send_adapter(self, order: AdapterOrder) -> None:
        raise AssertionError("there is no adapter")


class Engine:
    def __init__(self, fails: bool = False) -> None:
        self.fails, self.groups = fails, list[WeightGroup]()

    async def receive(self, group: WeightGroup, planned: list[Bucket], version: str) -> WeightComparison:
        self.groups.append(group)
        if self.fails:
            raise PublishError("weights 1 did not reach the engine")
        return WeightComparison(equal=1)


def sent(learner: Learner, engines: list[Any], gpus: bool = False, limit_s: float = 5) -> list[WeightGroup]:
    broadcast = WeightBroadcast(learner, 4, gpus, True, limit_s)
    assert asyncio.run(broadcast.weights(engines, "checkpoint", "1")) == [WeightComparison(equal=1)] * len(engines)
    return [engine.groups[0] for engine in engines]


def test_each_gpu_of_each_engine_is_a_rank_after_the_learners() -> None:
    groups = sent(Learner(cuda=True), [Engine(), Engine()], gpus=True)
    assert [(each.rank, each.size, each.backend, each.address, each.port) for each in groups] == [
        (1, 9, "nccl", "10.0.0.1", 5),
        (5, 9, "nccl", "10.0.0.1", 5),
    ]
    assert groups[0].name == groups[1].name


@pytest.mark.parametrize(("cuda", "gpus"), [(False, False), (True, False), (False, True)])
def test_weights_go_over_gloo_where_not_both_ends_have_gpus_of_their_own(cuda: bool, gpus: bool) -> None:
    assert sent(Learner(cuda), [Engine()], gpus)[0].backend == "gloo"


def test_one_engine_that_did_not_get_all_and_a_silent_learner_are_errors() -> None:
    with pytest.raises(PublishError, match="did not reach"):
        sent(Learner(), [Engine(), Engine(fails=True)])
    with pytest.raises(EngineError, match=r"the learner did not end sending within 0\.1 s"):
        sent(Learner(silent=True), [Engine()], limit_s=0.1)


def test_engines_that_rearrange_what_they_load_are_refused() -> None:
    assert load("tiny-cpu", ["publish.via=broadcast"]).publish.via == "broadcast"
    with pytest.raises(ConfigError, match=r"engine\.extra_args\.quantization"):
        load("tiny-cpu", ["publish.via=broadcast", "engine.extra_args={quantization: fp8}"])
    with pytest.raises(ConfigError, match=r"engine\.dtype to float32, or publish\.via to storage"):
        load("tiny-cpu", ["publish.via=broadcast", "engine.device=cpu", "engine.dtype=bfloat16"])
    load("tiny-cpu", ["publish.via=broadcast", "engine.device=cuda", "engine.dtype=bfloat16"])
