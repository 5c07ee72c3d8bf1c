"""Waits until a started server serves."""

import ssl
import time
from collections.abc import Callable, Mapping
from functools import cache

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


def answers(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, body: Mapping[str, object] | None = None
) -> bool:
    """Return whether a GET of `url`, or a POST of a `body`, returns status 200 within `timeout_s` seconds, without a proxy."""
    method = "GET" if body is None else "POST"
    try:
        answer = httpx.request(method, url, timeout=timeout_s, headers=headers, json=body, trust_env=False, verify=_authorities())
    except httpx.HTTPError:
        return False
    return answer.status_code == httpx.codes.OK


@cache
def _authorities() -> ssl.SSLContext:
    """Return the context that checks servers' certificates. httpx would read it again, 17 ms of a processor, for each request."""
    return httpx.create_ssl_context(trust_env=False)
