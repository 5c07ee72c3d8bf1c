"""Connections to the public internet only."""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore

_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Not for the public although their numbers look it: protocol assignments (a metadata service among them), the host of an Azure
# machine, old site-local addresses, documentation.
_SPECIAL = [ipaddress.ip_network(text) for text in ("192.0.0.0/24", "168.63.129.16/32", "fec0::/10", "3fff::/20")]
_TRIED = 3

Resolve = Callable[[str, int], Awaitable[list[str]]]


class ForbiddenAddressError(Exception):
    """A host name leads to an address that must not be reached."""


def is_public(address: str) -> bool:
    """Return whether it is a unicast address of the internet: no loopback, private, link-local, shared or reserved one."""
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.sixtofour is not None or parsed.teredo is not None:
            return False
        inner = parsed.ipv4_mapped or (ipaddress.IPv4Address(int(parsed) & 0xFFFFFFFF) if parsed in _NAT64 else None)
        if inner is not None:
            return is_public(str(inner))
    if any(parsed in network for network in _SPECIAL):
        return False
    return parsed.is_global and not parsed.is_multicast and not parsed.is_reserved and not parsed.is_unspecified


async def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of a host name. Raises OSError."""
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in addresses))


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Connects to the very address that was checked, so a name that changes its address in between gains nothing.

    A name with one forbidden address is forbidden whole. TLS still proves the name.
    """

    def __init__(self, allowed: Callable[[str], bool] = is_public, resolve: Resolve = resolve) -> None:
        self._allowed, self._resolve = allowed, resolve
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise httpcore.ConnectError(f"there is no host {host[:200]}") from None
        if not addresses or not all(map(self._allowed, addresses)):
            raise ForbiddenAddressError(f"{host[:200]} is not on the public internet")
        problem: Exception = httpcore.ConnectError(f"{host[:200]} cannot be reached")
        for address in addresses[:_TRIED]:
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                problem = error
        raise problem

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        raise ForbiddenAddressError("a socket of this machine is not on the public internet")

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
