"""Talking to one engine: token ids in, token ids and log-probs out; new weights.

Log-probs are log-softmax of the raw logits in float32, at temperature 1 and before top-p, whatever temperature and top_p the
tokens were sampled with. So at temperature 1 and top_p 1 they are the log-probs of the sampling distribution itself; otherwise
they are those of the policy, as the trainer computes them, and the tokens were drawn from another distribution.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx

from nbrl.infra.errors import EngineError, PublishError

FLUSH_S = 5.0
ADAPTER = "policy"  # what an engine calls the adapter that it serves
# The server closes connections that are idle for 5 s; using one at that moment would fail.
LIMITS = httpx.Limits(keepalive_expiry=2.0)
Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class EngineReply:
    """One generation, all of it by one version of the weights; one log-prob a token.

    `token_ids` ends with the stop token when one was sampled (`finish == "stop"`).
    """

    token_ids: list[int]
    logprobs: list[float]
    weights_version: str
    finish: Finish
    prompt_tokens: int
    cached_tokens: int


class EngineClient:
    """Every call ends: with its result, or with an EngineError after at most `timeout` seconds.

    `adapter` is what requests for the policy must name: ADAPTER after one was published, else None.
    """

    def __init__(self, url: str, timeout: float = 120.0, vocabulary_size: int | None = None, seeded: bool = False) -> None:
        self.url = url
        self.timeout = timeout
        self.vocabulary_size = vocabulary_size
        self.seeded = seeded
        self.adapter: str | None = None
        self._http = httpx.AsyncClient(base_url=url, timeout=httpx.Timeout(timeout, connect=10.0), limits=LIMITS, trust_env=False)

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def generate(
        self,
        input_ids: Sequence[int],
        *,
        temperature: float = 1.0,
        top_p: float = 1.0,
        max_new_tokens: int,
        stop_token_ids: Sequence[int] = (),
        seed: int | None = None,
    ) -> EngineReply:
        """Samples a continuation. It ends at a stop token, at the model's own end token, or at `max_new_tokens`.

        `seed` decides the sample, whatever else the engine is doing; it needs an engine with `seeded_sampling`.
        """
        sampling: dict[str, Any] = {
            "temperature": temperature,
            "top_p": top_p,
            "max_new_tokens": max_new_tokens,
            "stop_token_ids": list(stop_token_ids),
        }
        if seed is not None:
            if not self.seeded:
                raise EngineError(f"the engine at {self.url} ignores seeds: set engine.seeded_sampling")
            sampling["sampling_seed"] = seed
        answer = await self._generate(
            {"input_ids": self._checked(input_ids), "sampling_params": sampling, "return_logprob": True}
        )
        meta = answer["meta_info"]
        pairs = meta["output_token_logprobs"]
        finish = meta["finish_reason"]["type"]
        if finish == "abort":
            raise EngineError(
                f"the engine at {self.url} aborted a request: {meta['finish_reason'].get('message', 'no reason given')}"
            )
        token_ids = [int(pair[1]) for pair in pairs]
        if token_ids != answer["output_ids"]:
            raise EngineError(f"the engine at {self.url} returned log-probs of other tokens than it sampled")
        return EngineReply(
            token_ids=token_ids,
            logprobs=[float(pair[0]) for pair in pairs],
            weights_version=str(meta["weight_version"]),
            finish=finish,
            prompt_tokens=int(meta["prompt_tokens"]),
            cached_tokens=int(meta["cached_tokens"]),
        )

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-prob of each token given those before it; one fewer than `token_ids`, for the first has nothing before it."""
        body = {
            "input_ids": self._checked(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        pairs = (await self._generate(body))["meta_info"]["input_token_logprobs"][1:]
        if [pair[1] for pair in pairs] != list(token_ids[1:]):
            raise EngineError(f"the engine at {self.url} scored other tokens than it was given")
        return [float(pair[0]) for pair in pairs]

    async def health(self) -> bool:
        """Whether the server answers and its scheduler turns."""
        try:
            return (await self._http.get("/health", timeout=5.0)).status_code == 200
        except httpx.HTTPError:
            return False

    async def weights_version(self) -> str:
        return str((await self._call("GET", "/model_info")).json()["weight_version"])

    async def publish(self, model_path: Path | str, version: str) -> float:
        """Swaps in the weights at `model_path` and proves their version; seconds it took.

        No reply mixes two versions: requests in flight are aborted and fail with EngineError, requests that arrive meanwhile wait
        for the new weights. Whatever happens, the engine is told to continue.
        """
        body = {"model_path": str(model_path), "flush_cache": False, "weight_version": version}
        return await self._swap(lambda: self._call("POST", "/update_weights_from_disk", body), version)

    async def publish_adapter(self, folder: Path | None, version: str) -> float:
        """The same for the LoRA adapter at `folder`, in an engine with room for one; None takes it away. The model stays."""
        return await self._swap(lambda: self._exchange(folder, version), version)

    async def _exchange(self, folder: Path | None, version: str) -> None:
        if self.adapter:
            # SGLang loads an adapter that is asked for again by itself: when the new one cannot be had, the old one serves on.
            await self._call("POST", "/unload_lora_adapter", {"lora_name": ADAPTER})
        if folder:
            await self._call("POST", "/load_lora_adapter", {"lora_name": ADAPTER, "lora_path": str(folder)})
        self.adapter = ADAPTER if folder else None
        await self._call("POST", "/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def _swap(self, work: Callable[[], Awaitable[object]], version: str) -> float:
        started = time.monotonic()
        try:
            try:
                # Not "retract": retracted requests wait in the queue, SGLang cannot flush its cache while they do, and its own
                # flush after an update then ends the server. The cache must go: its prefixes come from the old weights.
                await self._call("POST", "/pause_generation", {"mode": "abort"})
                await work()
                await self._flush()
            except BaseException:
                with contextlib.suppress(EngineError):  # the first error tells more
                    await self.unpause()
                raise
            await self.unpause()
            served = await self.weights_version()
        except EngineError as error:
            raise PublishError(f"weights {version} did not reach the engine at {self.url}: {error}") from error
        if served != version:
            raise PublishError(f"the engine at {self.url} serves weights {served!r} after {version!r} were published")
        return time.monotonic() - started

    async def _flush(self) -> None:
        deadline = time.monotonic() + FLUSH_S
        while True:
            try:
                await self._call("POST", "/flush_cache")
                return
            except EngineError:  # the scheduler has not put away the last of the aborted requests yet
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.02)

    async def unpause(self) -> None:
        """Makes the engine go on; harmless when it is not paused. Call it after a controller died in the middle of a publish."""
        await self._call("POST", "/continue_generation", {})

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise EngineError("an empty prompt cannot be continued")
        # SGLang does not check: an unknown id indexes past the embedding and takes the whole server down.
        limit = self.vocabulary_size
        if min(ids) < 0 or (limit is not None and max(ids) >= limit):
            raise EngineError(
                f"token ids must be between 0 and {limit}, got {min(ids)} to {max(ids)}: tokenizer and model do not match"
            )
        return ids

    async def _generate(self, body: dict[str, Any]) -> dict[str, Any]:
        named = {} if self.adapter is None else {"lora_path": self.adapter}
        answer: dict[str, Any] = (await self._call("POST", "/generate", body | named)).json()
        return answer

    async def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = await self._http.request(method, path, json=body)
        except httpx.TimeoutException as error:
            raise EngineError(f"the engine at {self.url} did not answer {path} within {self.timeout:g} s") from error
        except httpx.HTTPError as error:
            raise EngineError(
                f"the engine at {self.url} cannot be reached for {path}: {error or type(error).__name__}"
            ) from error
        if response.status_code != 200:
            raise EngineError(
                f"the engine at {self.url} answered {path} with {response.status_code}: {response.text[:500].strip()}"
            )
        return response
