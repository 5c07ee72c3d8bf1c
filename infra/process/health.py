"""Waiting for a server that was started until it serves."""

import time
from collections.abc import Callable

import httpx

from nbrl.infra.process.child import Child


def wait_until_healthy(child: Child, healthy: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Whether `child` became `healthy`; False when it ended or `timeout_s` seconds passed first. It is left as it is."""
    deadline = time.monotonic() + timeout_s
    while not healthy():
        if not child.alive or time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def answers(url: str, timeout_s: float) -> bool:
    """Whether a GET of `url` gives status 200 within `timeout_s` seconds; no proxy is asked."""
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
