"""What no number of a run on one CPU tells: passes in 16 bits, shards in host memory, states written in the background."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy

from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.checkpoint import hugging_face
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.model import load
from nbrl.tasks.learner.model.policy_model import Critic, PolicyModel
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import make_learner

pytestmark = pytest.mark.usefixtures("alone")

CRITIC: dict[str, Any] = {"workers": 1, "lr": 1e-3, "critic": {"lr": 1e-3}}
GAE = AdvantageSettings(estimator="gae")


def make(policy: Path, **fields: Any) -> Learner:
    return make_learner(policy, **(CRITIC | fields))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_layer_of_a_pass_computes_in_the_dtype_of_the_settings(policy: Path, tmp_path: Path, dtype: torch.dtype) -> None:
    """In the policy, the reference and the critic, forward and backward."""
    learner = make(policy, dtype=str(dtype).removeprefix("torch."))
    forward, backward = set[torch.dtype](), set[torch.dtype]()

    def watch(module: nn.Module, _: object, out: Any) -> None:
        if isinstance(module, nn.Linear):
            forward.add(out.dtype)
            if out.requires_grad:
                out.register_hook(lambda gradient: backward.add(gradient.dtype))

    watching = nn.modules.module.register_module_forward_hook(watch)
    try:
        learner.execute(
            update_lab.write_order(tmp_path, update_lab.make_trajectories(1, 2), str(tmp_path / "out"), estimator=GAE)
        )
    finally:
        watching.remove()
    assert forward == backward == {dtype}


@pytest.mark.parametrize("offload", [(), ("optimizer",), ("reference",), ("optimizer", "reference")], ids="+".join)
def test_what_is_offloaded_is_sharded_into_host_memory(
    policy: Path, monkeypatch: pytest.MonkeyPatch, offload: tuple[str, ...]
) -> None:
    """By the policy that FSDP is given: without a GPU it would ask for pinned memory in vain."""
    given: dict[nn.Module, type[OffloadPolicy]] = {}

    def spy(module: nn.Module, offload_policy: OffloadPolicy, **more: Any) -> nn.Module:
        given[module] = type(offload_policy)
        return fully_shard(module, **more)

    fully_shard: Callable[..., nn.Module] = load.fully_shard
    monkeypatch.setattr(load, "fully_shard", spy)
    make(policy, offload=offload)
    found = []
    for root in (module for module in given if isinstance(module, PolicyModel | Critic)):
        name = "optimizer" if all(parameter.requires_grad for parameter in root.parameters()) else "reference"
        kinds = [given[module] for module in root.modules() if module in given]
        assert kinds == [CPUOffloadPolicy if name in offload else OffloadPolicy] * 3  # its own and its two layers'
        found.append(name)
    assert sorted(found) == ["optimizer", "optimizer", "reference"]  # the policy and the critic, and the frozen one
    assert len(given) == 9


@pytest.mark.more
def test_the_proof_and_the_export_do_not_wait_for_the_state(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, met = threading.Event(), list[bool]()
    write_data, write = dcp.FileSystemWriter.write_data, hugging_face.write

    def held(*given: Any) -> Any:
        met.append(exported.wait(100))  # seconds after which the order goes on all the same, for the test to fail
        return write_data(*given)

    def write_and_tell(*given: Any) -> None:
        write(*given)
        exported.set()

    monkeypatch.setattr(dcp.FileSystemWriter, "write_data", held)
    monkeypatch.setattr(hugging_face, "write", write_and_tell)
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1, 2), str(tmp_path / "out"), estimator=GAE)
    result = make(policy).execute(order)
    assert met == [True, True]  # the policy's state and the critic's
    assert {path.name for path in update_lab.place(result).iterdir()} == {
        "critic",
        "hf",
        "logprobs.parquet",
        "manifest.json",
        "result.json",
        "state",
    }
