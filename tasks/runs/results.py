"""Results of nodes on the storage: what a node made of which inputs, so that no process does finished work again.

A result is created once and never replaced while what it names is there with its digest. It is the only truth about a node;
Prefect displays it.
"""

import hashlib
import time
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import check_folder, part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout import HF, StageLayout
from nbrl.tasks.runs.epochs import check_newest
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights


class NodeResult(BaseModel):
    """`inputs` are the digests and values that the node was given; `finished` is in seconds since 1970."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    node: str
    run_id: str
    epoch: str
    inputs: list[str]
    artifact: Artifact
    finished: float
    version: str


def inputs_of(scope: Scope, arguments: tuple[object, ...]) -> list[str]:
    """What a node's result depends on: the policy that samples, and the digests and values of the arguments."""
    return [scope.weights.digest, *(part for argument in arguments for part in _parts(argument))]


def _parts(value: object) -> list[str]:
    if isinstance(value, Artifact):
        return [value.digest]
    if isinstance(value, list | tuple):
        return [str(len(value)), *(part for item in value for part in _parts(item))]
    return [repr(value)]


def key_of(scope: Scope, node: str, inputs: list[str]) -> str:
    """Key of the result of a node for these inputs."""
    return scope.layout.result(node, hashlib.sha256("\n".join([scope.run_id, *inputs]).encode()).hexdigest())


def find(storage: Storage, scope: Scope, key: str, scratch: Path) -> Artifact | None:
    """The artifact of a finished node, or None if there is no such result.

    Raises MissingError or DamagedError where the result is, but not what it names, and TakenOverError if it is of a process that
    took the run over.
    """
    try:
        result = NodeResult.model_validate(storage.read_json(key))
    except MissingError:
        return None
    except ValidationError as error:
        raise DamagedError(f"{storage.uri(key)} is no result of a node") from error
    if result.epoch > scope.epoch:
        check_newest(storage, scope.run_layout, scope.epoch)
    verify(storage, result.artifact, scratch)
    return result.artifact


def verify(storage: Storage, artifact: Artifact, scratch: Path) -> None:
    """Raises MissingError or DamagedError unless all objects of an artifact are what the node wrote.

    A remote checkpoint is downloaded into `scratch`, where the publish then finds it.
    """
    for key, digest in artifact.parts.items():
        storage.read_bytes(key, digest)
    if artifact.path.endswith(".parquet"):
        storage.read_bytes(artifact.path, artifact.digest)
        return
    folder = storage.local_path(artifact.path)
    if folder is None:
        folder = storage.download_folder(artifact.path, scratch / artifact.path)
    else:
        check_folder(folder)
    if part_digest(folder, f"{HF}/") != artifact.digest:
        raise DamagedError(f"{storage.uri(artifact.path)} holds other weights than the update made")


def keep(storage: Storage, scope: Scope, node: str, inputs: list[str], artifact: Artifact) -> Artifact:
    """Create the result of a node; returns the artifact that counts, which is another process's where that was first.

    Raises TakenOverError if that process has taken the run over.
    """
    key = key_of(scope, node, inputs)
    result = NodeResult(
        node=node,
        run_id=scope.run_id,
        epoch=scope.epoch,
        inputs=inputs,
        artifact=artifact,
        finished=time.time(),
        version=version("nbrl"),
    )
    if storage.create_json(key, result.model_dump(mode="json")):
        return artifact
    check_newest(storage, scope.run_layout, scope.epoch)
    return NodeResult.model_validate(storage.read_json(key)).artifact


def results_of(storage: Storage, stage: StageLayout) -> list[NodeResult]:
    """The results of all nodes of an iteration or an evaluation. Raises DamagedError."""
    found = []
    for key in storage.list(stage.results):
        try:
            found.append(NodeResult.model_validate(storage.read_json(key)))
        except ValidationError as error:
            raise DamagedError(f"{storage.uri(key)} is no result of a node") from error
    return found


def scores_of(storage: Storage, run: Run) -> dict[int, float]:
    """Held-out exact match of all evaluations of the run, by updates."""
    folders = {key.split("/")[3] for key in storage.list(run.layout.evaluations) if "/nodes/" in key}
    scores: dict[int, float] = {}
    for updates in map(int, folders):
        with suppress(DamagedError):  # it is found, and evaluated again, where it is needed
            for result in results_of(storage, run.layout.evaluation(updates)):
                scores[updates] = result.artifact.values["em"]
    return scores


def evaluation_of(storage: Storage, run: Run, policy: Weights) -> NodeResult | None:
    """The result of the evaluation of a policy, if it finished."""
    results = results_of(storage, run.layout.evaluation(policy.updates))
    return next((result for result in results if result.inputs[0] == policy.digest), None)
