"""Examines every machine of a joined cluster before anything is started on it."""

import hashlib
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import nbrl
from nbrl.infra.doctor import SHARED_MEMORY_MB, shared_memory_mb
from nbrl.infra.engine.arguments import installed, needed
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import ServerError, StorageError
from nbrl.infra.placement import for_sandboxes, offers
from nbrl.infra.ray_data import raised_in_task
from nbrl.infra.ray_worker import interface_of
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.sandbox import doctor
from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.services.capacity import lacking, of_engine

LIMIT_S = 90.0  # to start a worker on a machine and examine it
PROBE_S = 10.0  # of tries of a request to the storage
PACKAGES = ("torch", "transformers", "pyarrow", "ray", "pydantic")
CODE = ("agent", "flows", "infra", "sandbox", "tasks")


class Examination(NamedTuple):
    """The requirements of an examination of a machine: the code of the process that leads the run and the versions of what it
    uses, an object that it put on the storage, and what may be placed there: an engine with the version of SGLang that it needs,
    and sandboxes.
    """

    code: str
    versions: dict[str, str]
    storage: StorageSettings
    probe: str
    engine: EngineSettings | None
    sglang: str
    sandboxes: SandboxSettings | None


class Examined(NamedTuple):
    """The fault of a machine, in a sentence that says how to repair it, empty if there is none; and the versions of what its
    kernels have, where it may have sandboxes.
    """

    fault: str
    kernels: dict[str, str]


class MachineReport(NamedTuple):
    """A machine, its fault, empty if there is none, and whether it reported that itself."""

    machine: str
    fault: str
    answered: bool = True


def check_machines(config: RunConfig, say: Callable[[str], None], engines: bool = True, ranks: bool = True) -> None:
    """Check that every machine can do its part of a run, with engines and ranks of ours or without; Ray must be connected.

    `say` reports what the cluster does not offer yet. Raises ConfigError with the first fault that a machine has, and ServerError
    if one does not answer.
    """
    for report in examined(config, engines):
        if report.fault:
            raise (ConfigError if report.answered else ServerError)(f"{report.machine}: {report.fault}")
    for sentence in lacking(config, offers_of_machines(), engines, ranks):
        say(f"{sentence}; the start waits for machines that offer it")


def offers_of_machines() -> list[dict[str, float]]:
    """Return what each living machine of the cluster offers; Ray must be connected."""
    return [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]


def examined(config: RunConfig, engines: bool = True) -> Iterator[MachineReport]:
    """Return every machine of the cluster, all examined at once. Machines that die meanwhile are left out."""
    storage, probe = Storage(config.storage), f"probes/{uuid.uuid4().hex}"
    storage.write_bytes(probe, b"")
    try:
        yield from _examined(config, engines, probe)
    finally:
        storage.delete_keys([probe])


def _examined(config: RunConfig, engines: bool, probe: str) -> Iterator[MachineReport]:
    examinations, nodes = [], ray.nodes()
    sandboxes = for_sandboxes(nodes, config.rollout.resources)
    of_engines = of_engine(config.engine, sum(node["Alive"] for node in nodes))
    for node in sorted((node for node in nodes if node["Alive"]), key=lambda node: str(node["NodeManagerAddress"])):
        offered = node["Resources"]
        engine = config.engine if engines and offers(offered, of_engines) else None
        sandbox = config.sandbox if node["NodeID"] in sandboxes else None
        wanted = Examination(code_digest(), versions(), config.storage, probe, engine, needed(), sandbox)
        place = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        work: Any = ray.remote(num_cpus=0, max_retries=0)(examine)
        name = f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        examinations.append((name, node["NodeID"], work.options(scheduling_strategy=place).remote(wanted)))
    first: tuple[str, dict[str, str]] | None = None  # machine with sandboxes, with which others are compared
    for name, number, answer in examinations:
        try:
            fault, kernels = ray.get(answer, timeout=LIMIT_S)
            first = first or ((name, kernels) if kernels else None)
            yield MachineReport(name, fault or (of_other_kernels(kernels, *first) if kernels and first else ""))
        except ray.exceptions.GetTimeoutError:
            if _lives(number):
                fault = f"does not answer within {LIMIT_S:g} s; see whether it is up, or take it out of the cluster"
                yield MachineReport(name, fault, answered=False)
        except RayTaskError as error:
            cause = " ".join(str(raised_in_task(error)).split())
            yield MachineReport(name, f"cannot run nbrl: {cause[-300:]}; install there what is installed here")
        except RayError as error:
            if _lives(number):
                yield MachineReport(name, f"cannot be examined: {' '.join(str(error).split())[:300]}", answered=False)


def _lives(number: str) -> bool:
    return any(node["Alive"] and node["NodeID"] == number for node in ray.nodes())


def of_other_kernels(kernels: dict[str, str], machine: str, its: dict[str, str]) -> str:
    """Return how what a machine has for kernels differs from what another `machine` has, in a sentence; empty if it does not."""
    for name in ("Python", *sorted({*kernels, *its})):
        own, other = (f"{name} {each[name]}" if name in each else f"no {name}" for each in (kernels, its))
        if own != other:
            found = ", which takes Python 3.12 where it finds one," if name == "Python" else ""
            return (
                f"has for kernels {own}, and {machine} has {other}: run `make setup`{found} on both, or keep sandboxes away by "
                "rollout.resources"
            )
    return ""


def examine(wanted: Examination) -> Examined:
    """Examine this machine, to its first fault."""
    kernels: dict[str, str] = {}
    fault = _of_code(wanted) or _of_itself()
    if not fault and wanted.sandboxes is not None:
        fault = next((f"{name}: {message}" for name, works, message in doctor.boundary() if not works), "")
        try:
            kernels = {} if fault else interpreter.versions(wanted.sandboxes)
        except SandboxUnavailable as error:
            fault = str(error)
        fault = fault and f"cannot run sandboxes, {fault}; or keep them away by rollout.resources"
    return Examined(fault or _of_engine(wanted) or _of_storage(wanted), kernels)


def _of_code(wanted: Examination) -> str:
    if code_digest() != wanted.code:
        return "has another version of nbrl than the machine that leads the run; install the same one everywhere"
    own = versions()
    if other := [f"{name} {own[name]} instead of {led}" for name, led in wanted.versions.items() if own[name] != led]:
        return f"has {other[0]}, which the machine that leads the run has; run `make setup` there"
    return ""


def _of_itself() -> str:
    if (free := shared_memory_mb()) < SHARED_MEMORY_MB:
        return f"has {free} MB left in /dev/shm, and {SHARED_MEMORY_MB} are needed; enlarge it (docker: --shm-size=2g)"
    address = ray.util.get_node_ip_address()
    if interface_of(address) is None:
        return f"has no network interface with its address in the cluster, {address}; start Ray there with --node-ip-address"
    return ""


def _of_engine(wanted: Examination) -> str:
    if (engine := wanted.engine) is None:
        return ""
    if not engine.python.exists():
        return f"has no engine environment at {engine.folder}: run `make setup` there, or keep engines away by engine.resources"
    if (here := installed(engine)) != wanted.sglang:
        return f"has {f'SGLang {here}' if here else 'no SGLang'} in {engine.folder}, not {wanted.sglang}: run `make setup` there"
    return ""


def _of_storage(wanted: Examination) -> str:
    address = ray.util.get_node_ip_address()
    try:
        storage, own_probe = Storage(wanted.storage, patience_s=PROBE_S), f"{wanted.probe}-{address}"
        if not storage.exists(wanted.probe):
            return (
                f"does not see at {wanted.storage.root} what the machine that leads the run writes there; mount the same folder"
            )
        storage.write_bytes(own_probe, b"")
        storage.delete_keys([own_probe])
        return ""
    except StorageError as error:
        return f"does not reach the storage: {error}; see ray.forward for the variables of its credentials"


def versions() -> dict[str, str]:
    """Return the versions of the packages that must be equal on all machines."""
    return {name: version(name).partition("+")[0] for name in PACKAGES}  # builds for CPUs and GPUs differ after the plus


@cache
def code_digest() -> str:
    """Return the SHA-256 over the names and contents of all modules of nbrl that this process would import."""
    sha = hashlib.sha256()
    for folder in (Path(nbrl.__file__).parent / name for name in CODE):
        for path in sorted(folder.rglob("*.py")):
            sha.update(f"{folder.name}/{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return sha.hexdigest()
