"""Placement by Ray: resources that machines offer, and actors take."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field

OWN = ("CPU", "GPU", "memory", "object_store_memory")


def _custom(resources: dict[str, float]) -> dict[str, float]:
    for name, amount in resources.items():
        if name in OWN:
            raise ValueError(f"{name} is Ray's own; name a resource of yours, as in `ray start --resources='{{\"sandbox\": 4}}'`")
        if amount <= 0:
            raise ValueError(f"{name} is {amount:g}, but what is taken of a resource is above 0; leave it out")
    return resources


Resources = Annotated[
    dict[str, Annotated[float, Field(allow_inf_nan=False)]],
    AfterValidator(_custom),
]


def for_sandboxes(machines: Sequence[Mapping[str, Any]], wanted: Resources) -> list[str]:
    """Return the ids of the machines, of those that `ray.nodes` reports, where runners that take `wanted` may run.

    Where they take nothing, that is machines without a GPU, or all if each has some: sandboxes would take engines their cores.
    """
    living = {str(each["NodeID"]): each["Resources"] for each in machines if each["Alive"]}
    if wanted:
        return sorted(number for number, offered in living.items() if offers(offered, wanted))
    return sorted(number for number, offered in living.items() if not offered.get("GPU")) or sorted(living)


def offers(machine: Mapping[str, Any], wanted: Mapping[str, float]) -> bool:
    """Return whether a machine with these resources in all can hold something that takes `wanted`."""
    return all(machine.get(name, 0) >= amount for name, amount in wanted.items())
