"""A policy behind SGLang's native API."""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp

from nbrl.agent.errors import REFUSALS, PolicyError, RefusedError
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.routes import RouteLog

ABORTS = 16  # of one generation
KEEP_ALIVE_S = 2.0  # SGLang closes idle connections after 5 s; one closed just before its use fails
EXCERPT = 300
AWAY_POLL_S = 0.5
SIGN_S = 25.0  # SGLang itself waits 20 for a sign of its scheduler
UNAVAILABLE = 503  # what a server answers that ends, or whose scheduler did


def engine_session(timeout_s: float, headers: Mapping[str, str] | None = None, trust_env: bool = False) -> aiohttp.ClientSession:
    """Return connections to engines, shared by many policies; a request that takes longer than `timeout_s` fails.

    A cancelled request closes its connection, and the engine stops generating.
    """
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers, trust_env=trust_env)


class _UnavailableError(PolicyError):
    """The server reports that it cannot serve now."""


AWAY = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, _UnavailableError)


class SglangPolicy:
    """A SGLang server's /generate: token ids in, token ids and log-probs out.

    `seeded` says that the server samples by request seeds (deterministic inference); others draw from a state of their own.
    `url` may be a function, where the server can move while it is away. `adapter` names the LoRA adapter to sample with. Of
    several policies that a server has at once, `version` names the one that is sampled from; without, the server says which.

    `routes` keeps the experts that the server chose, if it is a mixture of experts and to say them.

    `away_s` is how long a server that has gone may take to come back, with the same request made again and again until then.
    `interrupted` says that this happened, so that time was lost for which the trajectory is not to blame.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str | Callable[[], str],
        stop_ids: list[int],
        sampling: Sampling,
        seeded: bool = False,
        adapter: str | None = None,
        version: str | None = None,
        away_s: float = 0.0,
        routes: RouteLog | None = None,
    ) -> None:
        self._session, self._where = session, (lambda: url) if isinstance(url, str) else url
        self._stop_ids, self._sampling, self._seeded, self._adapter = stop_ids, sampling, seeded, adapter
        self._version, self._away_s, self._routes = version, away_s, routes
        self.interrupted = False

    @property
    def _url(self) -> str:
        return self._where().rstrip("/")

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        start = 0 if self._routes is None else self._routes.start(prompt.token_ids)
        try:
            for _ in range(ABORTS):  # new weights abort what is being sampled: the action begins again
                reply = json.loads(await self._post(self._request(prompt, max_tokens, seed, start)))
                meta = reply["meta_info"]
                finish = meta["finish_reason"]["type"]
                if finish != "abort":
                    break
            logprobs = [float(entry[0]) for entry in meta["output_token_logprobs"]]
            ids = [int(entry[1]) for entry in meta["output_token_logprobs"]]
            if not all(0 <= number < 2**31 for number in ids):
                raise ValueError("a sampled id is no token")
            if not all(map(math.isfinite, logprobs)):
                raise ValueError("a log-prob is no number")
            if len(ids) > max_tokens:
                raise ValueError(f"it sampled {len(ids)} tokens and was asked for at most {max_tokens}")
            if self._routes is not None and ids:
                self._routes.keep([*prompt.token_ids, *ids], start, meta["routed_experts"])
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise PolicyError(
                f"the engine at {self._url} did not answer a generation: {type(error).__name__}: {error}"
            ) from error
        if finish not in ("stop", "length"):
            raise PolicyError(f"the engine at {self._url} ended a generation with {finish!r}; it is retried")
        version = str(meta.get("weight_version", "")) if self._version is None else self._version
        return Generation(ids, logprobs, version, finish)

    def _request(self, prompt: Prompt, max_tokens: int, seed: int, start: int) -> bytes:
        """Return the body; the list of ids lives only here, for a waiting request is held as long as the engine thinks."""
        body: dict[str, Any] = {
            "input_ids": prompt.token_ids,
            "return_logprob": True,
            "sampling_params": {
                "temperature": self._sampling.temperature,
                "top_p": self._sampling.top_p,
                "max_new_tokens": max_tokens,
                "stop_token_ids": self._stop_ids,
            },
        }
        if self._routes is not None:
            body |= {"return_routed_experts": True, "routed_experts_start_len": start}
        if prompt.stop:
            body["sampling_params"]["stop"] = list(prompt.stop)
        if self._seeded:
            body["sampling_params"]["sampling_seed"] = seed
        if self._adapter is not None:
            body["lora_path"] = self._adapter
        return json.dumps(body, separators=(",", ":")).encode()

    async def parse_calls(self, parser: str, text: str, tools: Sequence[Any]) -> tuple[str, list[dict[str, Any]]]:
        """Return a sampled text without the calls of tools in it, and these, each with `name` and its `arguments` as JSON.

        Raises RefusedError where the server's parser cannot do it, PolicyError where it does not answer.
        """
        body = json.dumps({"text": text, "tools": tools, "tool_call_parser": parser}).encode()
        try:
            reply = json.loads(await self._post(body, "parse_function_call"))
            calls = [{"name": str(call["name"]), "arguments": str(call["parameters"])} for call in reply["calls"]]
            return str(reply["normal_text"]), calls
        except _UnavailableError:
            raise
        except PolicyError as error:
            raise RefusedError(f"tools or agent.tool_parser ({parser}): {error}") from error
        except (aiohttp.ClientError, TimeoutError, LookupError, TypeError, ValueError, RecursionError) as error:
            raise PolicyError(f"the engine at {self._url} parsed no calls: {type(error).__name__}: {error}") from error

    async def serves(self) -> bool:
        """Return whether the server gives a sign of life, if need be after a token of its own."""
        try:
            limit = aiohttp.ClientTimeout(total=SIGN_S)
            async with self._session.get(f"{self._url}/health", timeout=limit) as response:
                return response.status != UNAVAILABLE
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _post(self, body: bytes, path: str = "generate") -> bytes:
        """Return the reply's body. A connection that the server closed, as it may when idle, is replaced at once; after that it
        is away, and is asked again until it is back or `away_s` seconds passed.
        """
        deadline: float | None = None
        while True:
            try:
                return await self._once(body, path)
            except aiohttp.ServerTimeoutError:
                raise
            except AWAY:
                if deadline is None:
                    deadline = time.monotonic() + self._away_s
                    continue
                if time.monotonic() >= deadline:
                    raise
                self.interrupted = True
            await asyncio.sleep(AWAY_POLL_S)

    async def _once(self, body: bytes, path: str) -> bytes:
        async with self._session.post(f"{self._url}/{path}", data=body, headers={"Content-Type": "application/json"}) as response:
            reply = await response.read()
            if response.status != 200:
                excerpt = reply.decode("utf-8", "replace")
                if secret := self._session.headers.get("Authorization", "").removeprefix("Bearer "):
                    excerpt = excerpt.replace(secret, "[key]")
                refused = RefusedError if response.status in REFUSALS else PolicyError
                kind = _UnavailableError if response.status == UNAVAILABLE else refused
                raise kind(f"the engine at {self._url} answered {response.status} to /{path}: {excerpt[:EXCERPT]}")
            return reply
