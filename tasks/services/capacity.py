"""Compares the resources that the parts of a run take with those that the machines of a cluster offer."""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from nbrl.infra.engine.settings import EngineSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.places import on_cuda
from nbrl.tasks.runs.config import RunConfig

ROUNDING = 1e-6  # 0.3 / 0.1 is a little less than 3
Machine = Mapping[str, float]  # what it offers, by name


class Demand(NamedTuple):
    """`number` actors of a run that take the same, of which `apart` belong together and need a machine each."""

    setting: str
    number: int
    wanted: Machine
    apart: int = 1


def lacking(config: RunConfig, machines: Sequence[Machine], engines: bool = True, ranks: bool = True) -> list[str]:
    """Return what does not fit on these machines; `engines` and `ranks` of ours are wanted or not.

    Ranks with an undecided device are skipped; `on_cuda` reports them.
    """
    return list(_lacking(_parts(config, machines, engines, ranks), machines))


def of_engine(engine: EngineSettings, machines: int) -> Machine:
    """Return what an engine takes of each of its machines. Of several machines each has GPUs of its own for it."""
    gpus = {"GPU": engine.gpus_per_machine} if machines > 1 and engine.resolved_device == "cuda" else {}
    return {**gpus, **engine.resources}


def _parts(config: RunConfig, machines: Sequence[Machine], engines: bool, ranks: bool) -> list[Demand]:
    """Return the demands of the parts; on a single machine GPUs may be shared."""
    engine, update, gpus = config.engine, config.update, sum(machine.get("GPU", 0) for machine in machines)
    own_gpus = len(machines) > 1
    pools = config.pools if ranks else 1  # batches of a training that are sampled at once
    parts = [Demand("rollout.resources", pools * config.rollout.runners, config.rollout.resources)]
    if engines:
        taken = of_engine(engine, len(machines))
        parts.append(Demand("engine", engine.count * engine.machines, taken, engine.machines))
    if ranks:
        with suppress(UpdateError):
            of_rank = {"GPU": 1} if own_gpus and on_cuda(update, gpus, grows=True) else {}
            parts.append(Demand("update", update.workers, {**of_rank, **update.resources}))
    return [part for part in parts if part.wanted]


def _lacking(parts: Sequence[Demand], machines: Sequence[Machine]) -> Iterator[str]:
    said = False
    for part in parts:
        places = [_places(machine, part.wanted) for machine in machines]
        each = ", ".join(f"{amount:g} of {name}" for name, amount in part.wanted.items())
        if sum(places) < part.number:
            yield f"{part.setting}: the machines have room for {sum(places)} of {part.number} that take {each}"
            said = True
        elif (several := sum(place > 0 for place in places)) < part.apart:
            yield f"engine.machines: an engine takes {each} of each of {part.apart} machines, and {several} can give it"
            said = True
    for name in dict.fromkeys(name for part in parts for name in part.wanted):
        taken = {part.setting: part.number * part.wanted[name] for part in parts if name in part.wanted}
        offered = sum(machine.get(name, 0) for machine in machines)
        if not said and sum(taken.values()) > offered + ROUNDING:
            needs = " and ".join(f"{amount:g} by {setting}" for setting, amount in taken.items())
            yield f"the machines offer {offered:g} of {name}, and more is taken: {needs}"


def _places(machine: Machine, wanted: Machine) -> int:
    """Return how many actors that take `wanted` a machine holds."""
    return math.floor(min(machine.get(name, 0) / amount for name, amount in wanted.items()) + ROUNDING)
