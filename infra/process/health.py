"""Waits until a started server serves."""

import time
from collections.abc import Callable

import httpx

from nbrl.infra.process.child import Child


def wait_until_healthy(child: Child, healthy: Callable[[], bool], timeout_s: float, poll_s: float = 0.05) -> bool:
    """Wait until `child` is `healthy`; False if it ended or `timeout_s` seconds passed first. The child is not stopped."""
    deadline = time.monotonic() + timeout_s
    while not healthy():
        if not child.alive or time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def answers(url: str, timeout_s: float) -> bool:
    """Whether a GET of `url` returns status 200 within `timeout_s` seconds, without a proxy."""
    try:
        return httpx.get(url, timeout=timeout_s, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False
