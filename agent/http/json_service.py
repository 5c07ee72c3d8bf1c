"""Requests to a JSON service on the web, with a key that stays on the host; a model behind an OpenAI-compatible endpoint is
one.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import httpx

from nbrl.agent.http.client import RETRIED, BodyTooLargeError, EncodingError, Retry, body, retry_after

ANSWER_BYTES = 4 << 20
RETRIES = 2
PATIENCE_S = 5.0


class ServiceError(Exception):
    """A request to a service failed; the message is for the cell and contains no key."""


class Service:
    """`post` asks below `base_url`. The key is read from the environment variable `variable` at each call.

    Without a `variable` no key is sent; when it is not set and `optional`, neither. The key goes into `header` after `prefix`. It
    never comes back: no error quotes an answer that could contain the key, and it is removed from answers.
    """

    def __init__(
        self,
        title: str,
        base_url: str,
        *,
        variable: str | None,
        timeout_s: float,
        header: str = "Authorization",
        prefix: str = "Bearer ",
        optional: bool = False,
    ) -> None:
        self._title, self._url, self._variable, self._timeout_s = title, base_url.rstrip("/"), variable, timeout_s
        self._header, self._prefix, self._optional = header, prefix, optional
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _key(self) -> str:
        if self._variable is None:
            return ""
        key = os.environ.get(self._variable, "").strip()
        if not key and not self._optional:
            raise ServiceError(f"{self._title} needs a key; set {self._variable} in the environment of the host")
        if not (key.isascii() and key.isprintable()):
            raise ServiceError(f"{self._variable} holds no usable key for {self._title}; set it in the environment of the host")
        return key

    async def post(self, path: str, content: dict[str, Any]) -> Any:
        """Return the answer as JSON. Raises ServiceError, after retrying busy and failing services for a short while."""
        key = self._key()
        headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
        if key:
            headers[self._header] = f"{self._prefix}{key}"
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=self._timeout_s)
        try:
            async with asyncio.timeout(self._timeout_s):
                data = await self._ask(self._client, path, content, headers)
        except TimeoutError:
            raise ServiceError(f"{self._title} did not answer within {self._timeout_s:g} s") from None
        try:
            return without(json.loads(data), {key: "[key]"})
        except (ValueError, RecursionError):
            raise ServiceError(f"{self._title} answered something that is not JSON") from None

    async def _ask(self, client: httpx.AsyncClient, path: str, content: dict[str, Any], headers: dict[str, str]) -> bytes:
        retry = Retry(RETRIES, PATIENCE_S)
        while True:
            requested = None
            try:
                async with client.stream("POST", self._url + path, json=content, headers=headers) as response:
                    if response.status_code == 200:
                        return await body(response.aiter_raw(), response.headers.get("Content-Encoding", ""), ANSWER_BYTES)
                    problem = self._problem(response.status_code)
                    if response.status_code not in RETRIED:
                        raise ServiceError(problem)
                    requested = retry_after(response.headers.get("Retry-After"))
            except (BodyTooLargeError, EncodingError) as error:
                raise ServiceError(f"{self._title} gave an answer that cannot be read: {error}") from None
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                # Its text may quote a header, hence the type alone.
                problem = f"{self._title} cannot be reached ({type(error).__name__})"
            if (wait := retry.next_wait(requested)) is None:
                more = f", {retry.tries} times in a row" if retry.tries > RETRIES else f" and asks to wait {requested:.0f} s"
                raise ServiceError(problem + more)
            await asyncio.sleep(wait)

    def _problem(self, status: int) -> str:
        if status in (401, 403):
            return f"{self._title} refuses the key (HTTP {status}); check {self._variable or 'its settings'} on the host"
        if status == 429:
            return f"{self._title} takes no more calls now (HTTP 429)"
        if 300 <= status < 400:
            return f"{self._title} points elsewhere (HTTP {status}); set its base_url to where it is"
        return f"{self._title} failed (HTTP {status})"


def without(answer: Any, secrets: dict[str, str]) -> Any:
    """Return JSON in which each secret, however it was escaped, is replaced. Raises ValueError or RecursionError."""
    text = json.dumps(answer)
    for secret, name in secrets.items():
        if secret:
            text = text.replace(json.dumps(secret)[1:-1], name)
    return json.loads(text)


class ChatModel:
    """A model behind POST /chat/completions."""

    def __init__(self, base_url: str, name: str, variable: str | None, max_tokens: int, timeout_s: float) -> None:
        self.service = Service("the model behind the tool", base_url, variable=variable, timeout_s=timeout_s)
        self._name, self._max_tokens = name, max_tokens

    async def ask(self, content: str | list[dict[str, Any]], sampling: Mapping[str, Any] = MappingProxyType({})) -> str:
        """Return the model's answer to one user message. `sampling`: more fields of the request. Raises ServiceError."""
        messages = [{"role": "user", "content": content}]
        request = {"model": self._name, "messages": messages, "max_tokens": self._max_tokens, **sampling}
        reply = await self.service.post("/chat/completions", request)
        match reply:
            case {"choices": [{"message": {"content": str(answer)}}, *_]}:
                return answer
        raise ServiceError("the model behind the tool answered JSON without a message")
