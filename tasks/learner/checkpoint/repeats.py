"""The way to a checkpoint without a state: the updates to repeat from the last one before it that has a state."""

from typing import NamedTuple

from pydantic import ValidationError

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import fault_in_words
from nbrl.tasks.layout.checkpoints import ORDER, STATES, run_of_checkpoint, updates_of
from nbrl.tasks.layout.shared import lies_below
from nbrl.tasks.learner.orders import UpdateOrder


class Repeats(NamedTuple):
    """Orders to carry out again, the oldest first, on the state of the checkpoint `base`; None is the initial model."""

    base: str | None
    orders: list[UpdateOrder]


def repeats(storage: Storage, checkpoint: str | None) -> Repeats:
    """Return the way to a checkpoint; without orders where it has a state. None is the initial model.

    Raises MissingError or DamagedError where there is none.
    """
    orders: list[UpdateOrder] = []
    base = checkpoint
    while base is not None and not has_state(storage, base):
        orders.append(_order_of(storage, base))
        base = orders[-1].checkpoint_in
    return Repeats(base, orders[::-1])


def has_state(storage: Storage, checkpoint: str) -> bool:
    """Whether the manifest names a state. Raises DamagedError."""
    try:
        return any(name.startswith(STATES) for name in storage.read_manifest(checkpoint))
    except MissingError:
        return False


def _order_of(storage: Storage, checkpoint: str) -> UpdateOrder:
    """The order that made a checkpoint. It may be a stranger's: what it names must lie in the same run."""
    key = f"{checkpoint}/{ORDER}"
    try:
        order = UpdateOrder.model_validate_json(storage.read_bytes(key))
    except MissingError as error:
        raise MissingError(
            f"{storage.uri(checkpoint)} has no state to go on from, and no {ORDER} by which its update could be repeated; "
            "bring them back from a copy"
        ) from error
    except ValidationError as error:
        raise DamagedError(f"{storage.uri(key)} is no order ({fault_in_words(error)}); bring it back from a copy") from error
    run = run_of_checkpoint(checkpoint)
    named = [each.key for each in (*order.trajectories, order.advantages)]
    if (before := order.checkpoint_in) is not None:
        named.append(before)
    elsewhere = [each for each in named if not lies_below(each, run)]
    if elsewhere or order.checkpoint_out != checkpoint or (before is not None and not _older(before, checkpoint)):
        fault = f"names {elsewhere[0]!r}" if elsewhere else f"makes {order.checkpoint_out} from {before}"
        raise DamagedError(f"{storage.uri(key)} is not the order of this checkpoint: it {fault}; bring it back from a copy")
    return order


def _older(before: str, checkpoint: str) -> bool:
    try:
        return updates_of(before) < updates_of(checkpoint)
    except ValueError:
        return False
