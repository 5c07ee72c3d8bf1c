"""Rank 0's end of a process group with engines, which it makes beside the learner's own and leaves again."""

import socket
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d

from nbrl.infra.engine.weight_group import WeightGroup


class WeightSending:
    """Listens at an address, on any free port, until it is closed. Each wait for the engines ends after `limit_s`.

    Errors are RuntimeError, as torch raises them.
    """

    def __init__(self, address: str, limit_s: float) -> None:
        self._limit = timedelta(seconds=limit_s)
        with socket.socket() as listening:  # by itself the store would listen on all addresses of the machine
            listening.bind((address, 0))
            listening.listen()
            self.address, self.port = address, int(listening.getsockname()[1])
            self._store: Any = dist.TCPStore(
                address,
                self.port,
                is_master=True,
                timeout=self._limit,
                wait_for_workers=False,
                master_listen_fd=listening.detach(),
            )
        self._group: Any = None

    def meet(self, group: WeightGroup) -> None:
        """Return when all engines have joined. The names below which ranks find each other are those that SGLang's ranks use:
        the group's name, and once more that of torch's own helper.
        """
        self._group, _ = c10d._new_process_group_helper(
            group.size,
            0,
            [],
            dist.Backend(group.backend),
            dist.PrefixStore(group.name, self._store),
            group_name=c10d.GroupName(group.name),
            timeout=self._limit,
        )
        c10d._world.pg_group_ranks[self._group] = {rank: rank for rank in range(group.size)}

    def send(self, tensor: Tensor) -> None:
        dist.broadcast(tensor, src=0, group=self._group)

    def close(self) -> None:
        """Close the connections, which ends the waits of engines."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
        self._group = self._store = None
