"""Examines every machine of a joined cluster before anything is started on it."""

import hashlib
import socket
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import nbrl
from nbrl.infra.doctor import SHARED_MEMORY_MB, shared_memory_mb
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import StorageError
from nbrl.infra.placement import offers
from nbrl.infra.ray_data import raised_in_task
from nbrl.infra.ray_worker import interface_of
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.sandbox import doctor
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig

LIMIT_S = 90.0  # to start a worker on a machine and examine it
PROBE_S = 10.0  # of tries of a request to the storage
CODE = ("agent", "flows", "infra", "sandbox", "tasks")


class Examination(NamedTuple):
    """What a machine is examined for: the code of the process that leads the run, and what may be placed there."""

    code: str
    storage: StorageSettings
    engine: EngineSettings | None
    sandboxes: bool


class Found(NamedTuple):
    """A machine, and what is wrong with it; empty if nothing is."""

    machine: str
    fault: str


def check_machines(config: RunConfig, say: Callable[[str], None]) -> None:
    """Raises ConfigError with the first fault of any machine; `say` hears what is not there yet. Ray must be connected."""
    for found in examined(config):
        if found.fault:
            raise ConfigError(f"{found.machine}: {found.fault}")
    offered = ray.cluster_resources()
    for setting, count, wanted in (
        ("engine.resources", config.engine.count, config.engine.resources),
        ("rollout.resources", config.rollout.runners, config.rollout.resources),
        ("update.resources", config.update.workers, config.update.resources),
    ):
        for name, amount in wanted.items():
            if offered.get(name, 0) < count * amount:
                has = f"the cluster offers {offered.get(name, 0):g} of {name}, and {count * amount:g} are taken"
                say(f"{setting}: {has}; the start waits for machines that offer it")


def examined(config: RunConfig) -> Iterator[Found]:
    """Every machine of the cluster, all examined at once."""
    asked = []
    for node in sorted((node for node in ray.nodes() if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"])):
        offered = node["Resources"]
        engine = config.engine if offers(offered, config.engine.resources) else None
        wanted = Examination(code_digest(), config.storage, engine, offers(offered, config.rollout.resources))
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        work: Any = ray.remote(num_cpus=0, max_retries=0)(examine)
        name = f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        asked.append((name, work.options(scheduling_strategy=place).remote(wanted)))
    for name, answer in asked:
        try:
            yield Found(name, ray.get(answer, timeout=LIMIT_S))
        except ray.exceptions.GetTimeoutError:
            yield Found(name, f"does not answer within {LIMIT_S:g} s; see whether it is up, or take it out of the cluster")
        except RayError as error:
            cause = " ".join(str(raised_in_task(error)).split())
            yield Found(name, f"cannot run nbrl: {cause[-300:]}; install there what is installed here")


def examine(wanted: Examination) -> str:
    """What is wrong with this machine, in a sentence that says how to put it right; empty if nothing is."""
    if code_digest() != wanted.code:
        return "has another version of nbrl than the machine that leads the run; install the same one everywhere"
    address = ray.util.get_node_ip_address()
    if interface_of(address) is None:
        return f"has no network interface with its address in the cluster, {address}; start Ray there with --node-ip-address"
    if wanted.sandboxes and (
        fault := next((f"{name}: {message}" for name, works, message in doctor.boundary() if not works), "")
    ):
        return f"cannot run sandboxes, {fault}; or keep them away by rollout.resources"
    if (engine := wanted.engine) is not None:
        if not engine.python.exists():
            return (
                f"has no engine environment at {engine.folder}: run `make setup` there, or keep engines away by engine.resources"
            )
        if (free := shared_memory_mb()) < SHARED_MEMORY_MB:
            return f"has {free} MB left in /dev/shm, and {SHARED_MEMORY_MB} are needed; enlarge it (docker: --shm-size=2g)"
    try:
        Storage(wanted.storage, patience_s=PROBE_S).exists(f"probes/{socket.gethostname()}")
    except StorageError as error:
        return f"does not reach the storage: {error}; see ray.forward for the variables of its credentials"
    return ""


@cache
def code_digest() -> str:
    """SHA-256 over the names and contents of all modules of nbrl that this process would import."""
    sha = hashlib.sha256()
    for folder in (Path(nbrl.__file__).parent / name for name in CODE):
        for path in sorted(folder.rglob("*.py")):
            sha.update(f"{folder.name}/{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return sha.hexdigest()
