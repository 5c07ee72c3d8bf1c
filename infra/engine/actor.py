"""An engine as an actor of Ray, on whatever machine Ray puts it."""

import os
from pathlib import Path
from typing import Any

import ray
from pydantic import BaseModel, ConfigDict

from nbrl.infra.engine.command import LOOPBACK, AdapterRoom, Door, last_gpus
from nbrl.infra.engine.host import EngineHost
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.node_cache import NodeSettings

THREADS = 4  # one that starts or stops the engine, and others that answer meanwhile
CPU_SHARE = 0.01  # engines, runners and ranks share the cores; Ray spreads only what asks for something


class EnginePlan(BaseModel):
    """What the engines of a fleet are, as plain data.

    `exposed`: other machines must reach them. `shared_gpus`: numbers of the machine's GPUs where engines and learner must share
    them; where it is empty, Ray gives each engine its own.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    settings: EngineSettings
    logs: Path
    nodes: NodeSettings
    room: AdapterRoom | None = None
    key: str
    exposed: bool = False
    shared_gpus: str = ""


class EngineActor(EngineHost):
    """Listens on the address that its machine has in the cluster, or on that of the machine itself."""

    def __init__(self, plan: EnginePlan, index: int, port: int | None) -> None:
        door = Door(ray.util.get_node_ip_address() if plan.exposed else LOOPBACK, plan.key, plan.key)
        count, shared = plan.settings.tensor_parallel, plan.shared_gpus
        gpus = last_gpus(index, count, shared) if shared else os.environ.get("CUDA_VISIBLE_DEVICES")
        super().__init__(plan.settings, index, plan.logs, plan.nodes, plan.room, door, gpus, port)


def start_actor(plan: EnginePlan, index: int, port: int | None = None) -> Any:
    """A new actor, whose engine is not started yet; it takes `port` if that is free where it stands."""
    on_gpus = plan.settings.device == "cuda" and not plan.shared_gpus
    options = {
        "num_cpus": CPU_SHARE,
        "num_gpus": plan.settings.tensor_parallel if on_gpus else 0,
        "resources": plan.settings.resources,
        "scheduling_strategy": "SPREAD",
        "max_concurrency": THREADS,
        "max_restarts": 0,
    }
    return ray.remote(EngineActor).options(**options).remote(plan, index, port)  # type: ignore[attr-defined]
