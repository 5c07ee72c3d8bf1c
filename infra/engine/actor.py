"""An engine as an actor of Ray, or as several of them on as many machines, and the places that are reserved for a fleet's
engines.
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import ray
from pydantic import BaseModel, ConfigDict, Field
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from nbrl.infra.engine.command import LOOPBACK, AdapterRoom, Door, last_gpus
from nbrl.infra.engine.host import EngineHost
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.node_cache import NodeSettings

CPU_SHARE = 0.01  # engines, runners and ranks share the cores; Ray spreads only what asks for something
THREADS = 4  # one that starts or stops the engine, and others that answer meanwhile


class EnginePlace(NamedTuple):
    """Bundles of a placement group, one for each machine of an engine. Where a machine dies, Ray moves its bundle to another."""

    group: PlacementGroup
    bundles: range


def reserve(settings: EngineSettings, gpus: int) -> list[EnginePlace]:
    """Ask for the places of all engines, with `gpus` of each of their machines; Ray grants them when there is room, and takes
    them back when this process leaves the cluster. Engines on one machine get theirs all at once, so that those of two runs never
    hold a part of what both need: on as many machines as possible, but with GPUs on as few, since the remaining GPUs are for the
    learner, whose ranks exchange weights and gradients for each micro-batch. Each engine on several gets its own at once, never
    two on one machine.
    """
    bundle = {"CPU": CPU_SHARE, **({"GPU": gpus} if gpus else {}), **settings.resources}
    count, machines = settings.count, settings.machines
    if machines == 1:
        group = placement_group([bundle] * count, strategy="PACK" if gpus else "SPREAD")
        return [EnginePlace(group, range(number, number + 1)) for number in range(count)]
    groups = [placement_group([bundle] * machines, strategy="STRICT_SPREAD") for _ in range(count)]
    return [EnginePlace(group, range(machines)) for group in groups]


class EnginePlan(BaseModel):
    """The engines of a fleet, as plain data.

    `exposed`: other machines must reach them. `shared_gpus`: numbers of the machine's GPUs where engines and learner must share
    them; where it is empty, Ray gives each engine its own. `stops`: requests name texts that end an answer.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    settings: EngineSettings
    logs: Path
    nodes: NodeSettings
    room: AdapterRoom | None = None
    key: str = Field(repr=False)
    exposed: bool = False
    shared_gpus: str = ""
    stops: bool = False

    @property
    def own_gpus(self) -> int:
        """Return how many GPUs of a machine Ray gives to an engine."""
        return self.settings.gpus_per_machine if self.settings.device == "cuda" and not self.shared_gpus else 0


class EngineActor(EngineHost):
    """Listens on the address that its machine has in the cluster, or on the loopback where no other machine asks it."""

    def __init__(self, plan: EnginePlan, index: int, port: int | None, exposed: bool) -> None:
        door = Door(ray.util.get_node_ip_address() if exposed else LOOPBACK, plan.key, plan.key, stops=plan.stops)
        count, shared = plan.settings.gpus_per_machine, plan.shared_gpus
        gpus = last_gpus(index, count, shared) if shared else os.environ.get("CUDA_VISIBLE_DEVICES")
        super().__init__(plan.settings, index, plan.logs, plan.nodes, door, plan.room, gpus, port)
        self._where = ray.util.get_node_ip_address() if plan.exposed else ""

    def start(self, *asked: Any) -> tuple[str, int]:
        try:
            return super().start(*asked)
        except EngineError as error:
            raise (EngineError(f"on {self._where}: {error}") if self._where else error) from error

    def log(self) -> str:
        return super().log() + (f" on {self._where}" if self._where else "")


class EngineActors(NamedTuple):
    """The actors of one engine, one for each of its machines; requests go to the first."""

    members: list[Any]

    @property
    def first(self) -> Any:
        return self.members[0]

    def kill(self) -> None:
        for each in self.members:
            ray.kill(each)


def start_actors(plan: EnginePlan, index: int, place: EnginePlace, port: int | None = None) -> EngineActors:
    """Return new actors, whose engine is not started yet; it takes `port` if that is free on the machine of the first."""
    actor: Any = ray.remote(EngineActor)
    options = {
        "num_cpus": CPU_SHARE,
        "num_gpus": plan.own_gpus,
        "resources": plan.settings.resources,
        "max_concurrency": THREADS,
        "max_restarts": 0,
    }
    members = list[Any]()
    for bundle in place.bundles:
        where = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=bundle)
        own = (port, plan.exposed) if not members else (None, False)
        members.append(actor.options(**options, scheduling_strategy=where).remote(plan, index, *own))
    return EngineActors(members)
