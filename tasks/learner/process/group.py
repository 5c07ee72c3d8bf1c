"""The process group of the ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import ray
import torch
import torch.distributed as dist
from ray.train.collective import broadcast_from_rank_zero

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
