"""Sets up each worker process of a joined cluster, on any machine."""

import os
import socket
from collections.abc import Callable, Mapping

import psutil

from nbrl.infra import own_code

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def setup(variables: Mapping[str, str]) -> Callable[[], None]:
    """Return a function for Ray's `worker_process_setup_hook`. It travels as code: the variables of a runtime environment are in
    Ray's logs, and among these may be keys.
    """
    given = dict(variables)

    def nbrl_worker() -> None:
        os.environ.update(given)
        own_code.install()
        name_interfaces()

    return nbrl_worker


def name_interfaces() -> None:
    """Let ranks meet at the address that this machine has in the cluster: by itself gloo takes the one of the host's name, which
    may be 127.0.1.1 or none. What the machine's own environment names stays.
    """
    import ray

    if (interface := interface_of(ray.util.get_node_ip_address())) is not None:
        for name in INTERFACES:
            os.environ.setdefault(name, interface)


def interface_of(address: str) -> str | None:
    """Return the network interface with this address, if this machine has one."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.family in (socket.AF_INET, socket.AF_INET6) and each.address == address for each in addresses):
            return name
    return None
