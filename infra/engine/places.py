"""Reserves the places of a fleet's engines on the machines of a Ray cluster."""

from typing import NamedTuple

from ray.util.placement_group import PlacementGroup, placement_group

from nbrl.infra.engine.settings import EngineSettings

CPU_SHARE = 0.01  # engines, runners and ranks share the cores; Ray spreads only what asks for something


class EnginePlace(NamedTuple):
    """Bundles of a placement group, one for each machine of an engine. Where a machine dies, Ray moves its bundle to another."""

    group: PlacementGroup
    bundles: range


def reserve(settings: EngineSettings, gpus: int) -> list[EnginePlace]:
    """Ask for the places of all engines, with `gpus` of each of their machines; Ray grants them when there is room, and takes
    them back when this process leaves the cluster.

    Engines on one machine get theirs all at once, so that those of two runs never hold a part of what both want: on as many
    machines as possible, but with GPUs on as few, since what they leave are the learner's, whose ranks exchange weights and
    gradients for each micro-batch. Each engine on several gets its own at once, never two on one machine.
    """
    bundle = {"CPU": CPU_SHARE, **({"GPU": gpus} if gpus else {}), **settings.resources}
    count, machines = settings.count, settings.machines
    if machines == 1:
        group = placement_group([bundle] * count, strategy="PACK" if gpus else "SPREAD")
        return [EnginePlace(group, range(number, number + 1)) for number in range(count)]
    groups = [placement_group([bundle] * machines, strategy="STRICT_SPREAD") for _ in range(count)]
    return [EnginePlace(group, range(machines)) for group in groups]
