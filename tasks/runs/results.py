"""Results of nodes on the storage: what a node made of which inputs, so that no process does finished work again.

A result is created once and never replaced while what it names is there with its digest. It is the only truth about a node;
Prefect displays it.
"""

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import PARALLEL, check_whole, part_digest
from nbrl.infra.node_cache import NodeCache
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.layout.stages import StageLayout, is_chunk, of_node, policy_folder
from nbrl.tasks.runs.epochs import check_newest
from nbrl.tasks.runs.kept import read_kept
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.runs.steps import StepStore

NAME = re.compile(r"[a-z]+-[0-9a-f]{16}\.json")  # of a result below its stage


class NodeResult(ClosedModel):
    """`inputs` are the digests and values that the node was given; `finished` is in seconds since 1970."""

    node: str
    run_id: str
    epoch: str
    inputs: list[str]
    artifact: Artifact
    finished: float
    version: str


def inputs_of(scope: Scope, arguments: tuple[object, ...]) -> list[str]:
    """Return the inputs on which a node's result depends: the policy that samples, and digests and values of arguments."""
    return [scope.weights.digest, *(part for argument in arguments for part in _parts(argument))]


def _parts(value: object) -> list[str]:
    if isinstance(value, Artifact):
        return [value.digest]
    if isinstance(value, list | tuple):
        return [str(len(value)), *(part for item in value for part in _parts(item))]
    return [repr(value)]


def key_of(scope: Scope, node: str, inputs: list[str]) -> str:
    """Return the key of the result of a node for these inputs."""
    return scope.layout.result(node, hashlib.sha256("\n".join([scope.run_id, *inputs]).encode()).hexdigest())


def node_steps(storage: Storage, scope: Scope, cache: NodeCache, say: Callable[[str], None]) -> StepStore[NodeResult]:
    """Return the steps of a process that holds the scope's epoch.

    They raise TakenOverError where a result is of a process that took the run over.
    """

    def check(result: NodeResult) -> None:
        if result.epoch > scope.epoch:
            check_newest(storage, scope.run_layout, scope.epoch)
        verify(storage, result.artifact, cache)

    return StepStore(storage, NodeResult, check, say)


def verify(storage: Storage, artifact: Artifact, cache: NodeCache) -> None:
    """Raises MissingError or DamagedError unless all objects of an artifact are what the node wrote.

    Of a checkpoint on a cloud only the weights that engines serve are read, into the cache; the rest is read when it is used.
    """
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(storage.read_bytes, artifact.parts.keys(), artifact.parts.values()))
    if artifact.path.endswith(".parquet"):
        storage.read_bytes(artifact.path, artifact.digest)
        return
    folder = storage.local_path(artifact.path)
    if folder is None:
        cache.lease(storage, artifact.path, HF).release()
    else:
        check_whole(folder)
    if part_digest(storage.read_manifest(artifact.path), f"{HF}/") != artifact.digest:
        raise DamagedError(f"{storage.uri(artifact.path)} holds other weights than the update made")


def result_of(scope: Scope, node: str, inputs: list[str], artifact: Artifact) -> NodeResult:
    """Return the result of a node that has just made the artifact."""
    return NodeResult(
        node=node,
        run_id=scope.run_id,
        epoch=scope.epoch,
        inputs=inputs,
        artifact=artifact,
        finished=time.time(),
        version=version("nbrl"),
    )


def results_of(storage: Storage, stage: StageLayout) -> list[NodeResult]:
    """Return the results of all nodes of an iteration or an evaluation. Raises DamagedError."""
    return [result for _, result in keyed_results(storage, stage)]


def keyed_results(storage: Storage, stage: StageLayout) -> list[tuple[str, NodeResult]]:
    """Return the same as `results_of`, each with its key."""
    return [(key, read_kept(storage, key, NodeResult)) for key in storage.list(stage.results)]


def merge(storage: Storage, stage: StageLayout, artifacts: Iterable[Artifact]) -> None:
    """Put the results that made these artifacts, those of a finished iteration, into one object: nothing but `--redo` reads them.

    Another process may do the same meanwhile, or have done a part of it.
    """
    made = {artifact.path for artifact in artifacts}
    keys = storage.list(stage.results)
    if not keys:
        return
    with ThreadPoolExecutor(PARALLEL) as pool:
        found = dict(zip(keys, pool.map(partial(_as_json, storage), keys), strict=True))
    merged = _merged(storage, stage)  # after the list: what another process has deleted since, it put there before
    new = {key.rpartition("/")[2]: fields for key, fields in found.items() if fields and fields["artifact"]["path"] in made}
    if merged | new != merged:
        storage.write_json(stage.merged_results, {"results": merged | new})
    storage.delete_keys(keys)


def unmerge(storage: Storage, stage: StageLayout) -> None:
    """Make the results of a finished iteration objects of their own again. Those that are damaged are left out."""
    for name, fields in _merged(storage, stage).items():
        if NAME.fullmatch(name):
            storage.create_json(f"{stage.results}/{name}", fields)
    storage.delete(stage.merged_results)


def _merged(storage: Storage, stage: StageLayout) -> dict[str, Any]:
    try:
        return dict(storage.read_json(stage.merged_results)["results"])
    except (MissingError, DamagedError, KeyError, TypeError, ValueError):
        return {}


def _as_json(storage: Storage, key: str) -> dict[str, Any]:
    """Return a result as it is on the storage; empty where it is gone or damaged."""
    try:
        return read_kept(storage, key, NodeResult).model_dump(mode="json")
    except (MissingError, DamagedError):
        return {}


def evaluated_updates(storage: Storage, run: Run) -> list[int]:
    """Return the updates of the policies that have a finished evaluation."""
    return sorted({int(key.split("/")[3]) for key in storage.list(run.layout.evaluations) if of_node(key)})


def is_to_come(key: str, results: Iterable[NodeResult]) -> bool:
    """Return whether the key belongs to an evaluation that has no result yet: of a stage without one, or another policy's
    chunk.
    """
    stage = "/".join(key.split("/")[:4])
    policies = [result.inputs[0] for result in results if result.artifact.path.startswith(f"{stage}/")]
    return not policies or (is_chunk(key) and not any(f"/{policy_folder(policy)}/" in key for policy in policies))


def scores_of(storage: Storage, run: Run) -> dict[int, float]:
    """Return the held-out success of all evaluations of the run, by updates."""
    return {updates: values["success"] for updates, values in evaluations_of(storage, run).items()}


def evaluations_of(storage: Storage, run: Run) -> dict[int, Mapping[str, float]]:
    """Return the metrics of all evaluations of the run, by updates."""
    found: dict[int, Mapping[str, float]] = {}
    for updates in evaluated_updates(storage, run):
        with suppress(DamagedError):  # it is found, and evaluated again, where it is needed
            for result in results_of(storage, run.layout.evaluation(updates)):
                found[updates] = result.artifact.values
    return found


def evaluation_of(storage: Storage, run: Run, policy: Weights) -> NodeResult | None:
    """Return the result of the evaluation of a policy, if it finished."""
    results = results_of(storage, run.layout.evaluation(policy.updates))
    return next((result for result in results if result.inputs[0] == policy.digest), None)
