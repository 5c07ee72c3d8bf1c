"""The addresses on which servers of ours listen, and where they are then asked."""

import socket

LOCAL = ("127.0.0.1", "localhost", "::1")
ALL = ("0.0.0.0", "::")


def is_local(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    return host in LOCAL


def here(host: str) -> str:
    """The host at which this machine asks a server that listens on `host`."""
    return "127.0.0.1" if host in ALL else f"[{host}]" if ":" in host else host


def told(host: str) -> str:
    """The host that others type to reach it."""
    return socket.gethostname() if host in ALL else here(host)
