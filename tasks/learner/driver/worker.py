"""The loop of every rank of the Ray Train run: take an order and execute it in step with the others, until stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import ray
import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
import transformers
from ray.actor import ActorHandle
from ray.train.collective import broadcast_from_rank_zero

from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.driver.ranks import Reply
from nbrl.tasks.learner.driver.sender import Sender
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import Order, Result, TeachOrder, UpdateOrder
from nbrl.tasks.learner.settings import UpdateSettings

LIMIT = timedelta(minutes=30)  # of one collective


@contextmanager
def joined(device: torch.device, rank: int, ranks: int) -> Iterator[None]:
    """Join the process group of `ranks` ranks as `rank`, through a store that rank 0 serves: gloo, and NCCL on GPUs.

    Where one fails the group is not taken down: others may be in the middle of a collective, and Ray ends their processes.
    """
    if rank == 0:
        store = dist.TCPStore(ray.util.get_node_ip_address(), 0, ranks, is_master=True, wait_for_workers=False, timeout=LIMIT)
        broadcast_from_rank_zero((store.host, store.port))
    else:
        host, port = broadcast_from_rank_zero((None, None))
        store = dist.TCPStore(host, port, ranks, is_master=False, timeout=LIMIT)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo", store=store, rank=rank, world_size=ranks, timeout=LIMIT)
    yield
    dist.destroy_process_group()


def loop(config: dict[str, Any]) -> None:
    """Carry out orders until stopped. Errors of an order are answered and the loop continues; any other error ends this rank, and
    with it the run.
    """
    settings: UpdateSettings = config["settings"]
    context = ray.train.get_context()
    torch.set_num_threads(settings.threads_per_worker)
    transformers.utils.logging.disable_progress_bar()
    device = ray.train.torch.get_device()
    with joined(device, context.get_world_rank(), context.get_world_size()):
        learner = Learner(settings, config["places"], device, config["seed"])
        _carry_out(learner, Sender(learner.open, device), config["mailbox"], context.get_world_rank())


def out_of_memory(error: Exception) -> UpdateError:
    """Return the error for an order that ran out of memory, in a sentence."""
    reason = " ".join(str(error).split())[:200]
    return UpdateError(
        "a GPU has too little memory for the update: lower update.tokens_per_micro_batch, set update.activation_checkpointing to "
        f"true, or leave it more beside an engine by engine.extra_args.mem-fraction-static ({reason})"
    )


def _carry_out(learner: Learner, sender: Sender, mailbox: ActorHandle, rank: int) -> None:
    """Take orders until there are none."""

    def done(order: Order) -> Result:
        if isinstance(order, UpdateOrder):
            sender.close()
            return learner.execute(order)
        if isinstance(order, TeachOrder):
            return learner.teach(order)
        return sender.execute(order) if rank == 0 else None  # no collective: the others go on to the next order

    ray.get(mailbox.report_up.remote(rank))
    for number in count():
        order = ray.get(mailbox.take.remote(number))
        if order is None:
            learner.settle()
            return
        try:
            answer = Reply(done(order))
        except (UpdateError, StorageError) as error:
            answer = Reply(None, type(error)(str(error)))
        except torch.OutOfMemoryError as error:
            # The other ranks wait for this one in a collective; started again, it would run out of memory at the same order.
            ray.get(mailbox.answer.remote(number, Reply(None, out_of_memory(error))))
            raise
        if rank == 0:
            ray.get(mailbox.answer.remote(number, answer))
