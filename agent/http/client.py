"""Connections to an OpenAI-compatible server, with a key that stays on the host."""

import os
from urllib.parse import urlsplit

import httpx

LOCAL = ("127.0.0.1", "localhost", "::1")


def usable_key(variable: str | None) -> str:
    """The key in an environment variable; empty without a variable. Raises ValueError if it holds none, in words."""
    if variable is None:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key or not (key.isascii() and key.isprintable()):
        raise ValueError(f"the environment variable {variable} holds no usable key; set it")
    return key


def model_client(base_url: str, key: str, connections: int, timeout_s: float) -> httpx.AsyncClient:
    """A client for at most `connections` requests at once. No proxy stands between this machine and itself."""
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        timeout=timeout_s,
        limits=httpx.Limits(max_connections=connections, keepalive_expiry=2.0),
        trust_env=urlsplit(base_url).hostname not in LOCAL,
    )
