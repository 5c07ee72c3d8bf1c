"""Orders to the learner: the update of an iteration, and updates that are repeated for a state that no checkpoint has."""

from collections.abc import Sequence

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import MANIFEST
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import STATES
from nbrl.tasks.layout.stages import TEACHER
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record, made_in, read_record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.seeds import derive_seed


def make_order(
    config: RunConfig,
    scope: Scope,
    advantages: Artifact,
    trajectories: Sequence[Artifact],
    staleness: int,
    repeats: Sequence[UpdateOrder] = (),
    taught: Artifact | None = None,
) -> UpdateOrder:
    """Return the order that makes the next checkpoint. `repeats` are those since the last checkpoint with a state; `taught` has
    what the teacher of the loss said.

    The run's last checkpoint has a state too, for a run that is given more iterations, and so has the next one after a state was
    lost.
    """
    every, last = config.checkpoints.state_every, scope.iteration + 1 == config.iterations
    with_state = last or (scope.updates + 1) % every == 0 or len(repeats) > every
    return UpdateOrder(
        iteration=scope.iteration,
        seed=derive_seed(scope.seed, scope.iteration, "update"),
        trajectories=[StoredTable(key=each.path, digest=each.digest) for each in trajectories],
        advantages=StoredTable(key=advantages.path, digest=advantages.digest),
        estimator=config.advantage if config.learner_estimates else None,
        teacher=None if taught is None else StoredTable(key=taught.path, digest=taught.digest),
        initial="" if scope.updates else scope.weights.digest,
        checkpoint_in=scope.weights.checkpoint if scope.updates else None,
        checkpoint_out=scope.next_checkpoint,
        dtype=config.published_dtype,
        staleness=staleness if config.update.old == "interpolated" else 0,
        state="later" if with_state else "none",
        repeats=list(repeats),
    )


def since_state(storage: Storage, config: RunConfig, run: Run, weights: Weights) -> list[UpdateOrder]:
    """Return the orders of the updates that made `weights` since the last checkpoint with a state, the oldest first.

    Their tables are those of the records. Raises DamagedError where a record is gone or damaged.
    """
    orders: list[UpdateOrder] = []
    while weights.checkpoint and not has_state(storage, weights.checkpoint):
        number = made_in(storage, run, weights.updates)
        record, before = read_record(storage, run, number), _policy_after(storage, run, number)
        if record is None or record.checkpoint != weights.checkpoint or record.advantages is None:
            raise DamagedError(
                f"{storage.uri(weights.checkpoint)} has no state to go on from, and no record of its update, which could be "
                "repeated; bring them back from a copy"
            )
        sampler = _policy_after(storage, run, max(0, number - config.pipeline.lag))
        scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch=record.epoch, iteration=number, weights=before)
        trajectories = [round_.trajectories for round_ in record.rounds]
        stale = before.updates - sampler.updates
        order = make_order(config, scope, record.advantages, trajectories, stale, taught=taught_in(record))
        orders.append(order.model_copy(update={"checkpoint_out": record.checkpoint}))
        weights = before
    return orders[::-1]


def taught_in(record: Record) -> Artifact | None:
    """Return what the teacher said in an iteration, if there was one."""
    return next((artifact for artifact in record.artifacts if artifact.path.endswith(f"/{TEACHER}")), None)


def has_state(storage: Storage, checkpoint: str) -> bool:
    """Return whether the manifest of a checkpoint names a state. Raises DamagedError."""
    try:
        return any(name.startswith(STATES) for name in storage.read_manifest(checkpoint))
    except MissingError:
        return False


def can_train_on(storage: Storage, config: RunConfig, run: Run, weights: Weights) -> bool:
    """Return whether the checkpoint is there, and has a state or is made by updates whose tables are there."""
    try:
        orders = since_state(storage, config, run, weights)
    except DamagedError:
        return False
    tables = [table.key for order in orders for table in order.tables]
    return all(map(storage.exists, [f"{weights.checkpoint}/{MANIFEST}", *tables]))


def _policy_after(storage: Storage, run: Run, iterations: int) -> Weights:
    """Return the policy after so many iterations."""
    if not iterations:
        return Weights(digest=run.policy)
    record = read_record(storage, run, iterations - 1)
    if record is None:
        raise DamagedError(f"{storage.uri(run.layout.iteration(iterations - 1).record)} is gone; bring it back from a copy")
    return record.policy
