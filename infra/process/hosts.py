"""The addresses on which servers of ours listen, and where they are then asked."""

import socket

import psutil

from nbrl.infra.errors import ServerError
from nbrl.infra.process.own_pages import LOCAL

ALL = ("0.0.0.0", "::")


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    return host in LOCAL


def check_host(host: str) -> None:
    """Raises ServerError unless a server of this machine can listen on `host`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(address)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"--host {host}: this machine cannot listen there ({error}); 0.0.0.0 is every address of it") from error


def names_of(host: str) -> tuple[str, ...]:
    """The names and addresses by which a server that listens on `host` is asked, in small letters and without brackets."""
    if is_local(host):
        return LOCAL
    names = [host]
    if host in ALL:
        addresses = [each.address for all_of in psutil.net_if_addrs().values() for each in all_of]
        names = [socket.gethostname(), socket.getfqdn(), *(address.partition("%")[0] for address in addresses)]
    return tuple(dict.fromkeys([*LOCAL, *(name.lower() for name in names)]))


def here(host: str) -> str:
    """The host at which this machine asks a server that listens on `host`."""
    return "127.0.0.1" if host in ALL else f"[{host}]" if ":" in host else host


def told(host: str) -> str:
    """The host that others type to reach it."""
    return socket.gethostname() if host in ALL else here(host)
