"""Asks a server over HTTP whether it serves."""

import ssl
from collections.abc import Mapping
from functools import cache

import httpx


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
