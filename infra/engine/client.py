"""Operating one engine: new weights, their version, and log-probs of given tokens. Agents sample by their own client.

Log-probs are log-softmax of the raw logits in float32, at temperature 1 and before top-p, whatever temperature and top_p the
tokens were sampled with. So at temperature 1 and top_p 1 they are the log-probs of the sampling distribution itself; otherwise
they are those of the policy, as the trainer computes them, and the tokens were drawn from another distribution.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx

from nbrl.infra.engine.settings import headers
from nbrl.infra.engine.weight_group import Bucket, WeightComparison, WeightGroup
from nbrl.infra.errors import EngineError, PublishError

FLUSH_S = 5.0
LENT = ["kv_cache"]
LEAVE_S = 5.0  # an engine that waits in a broadcast does not answer
# The server closes connections that are idle for 5 s; using one at that moment would fail.
LIMITS = httpx.Limits(keepalive_expiry=2.0)


def adapter_name(version: str) -> str:
    """Return what engines call the adapter of these weights, so that requests name it."""
    return f"policy-{version}"


class EngineClient:
    """Every call ends: with its result, or with an EngineError after at most `timeout` seconds."""

    def __init__(self, url: str, timeout: float = 120.0, vocabulary_size: int | None = None, key: str = "") -> None:
        """Make a client. `key` is what the engine requires of requests and of its administrator; empty if it requires none."""
        self.url, self.key = url, key
        self.timeout = timeout
        self.vocabulary_size = vocabulary_size
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers(key), timeout=httpx.Timeout(timeout, connect=10.0), limits=LIMITS, trust_env=False
        )

    async def __aenter__(self) -> "EngineClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def score(self, token_ids: Sequence[int], first: int = 1, adapter: str | None = None) -> list[float]:
        """Return the log-probs of the tokens from number `first`, above 0, on, each given those before it."""
        body: dict[str, Any] = {
            "input_ids": self._checked(token_ids),
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": first - 1,
        }
        if adapter is not None:
            body["lora_path"] = adapter
        reply: dict[str, Any] = (await self._call("POST", "/generate", body)).json()
        pairs = reply["meta_info"]["input_token_logprobs"][1:]
        last = max(token_ids) if self.vocabulary_size is None else self.vocabulary_size - 1  # SGLang may call it 0
        asked, scored = list(token_ids[first:]), [pair[1] for pair in pairs]
        if scored not in (asked, [0 if token == last else token for token in asked]):
            raise EngineError(f"the engine at {self.url} scored other tokens than it was given")
        return [float(pair[0]) for pair in pairs]

    async def text_of(self, token_ids: Sequence[int]) -> str | None:
        """Return the text of tokens; None if the engine has no tokenizer."""
        try:
            reply = await self._call("POST", "/detokenize", {"tokens": self._checked(token_ids), "skip_special_tokens": False})
        except EngineError:
            await self._call("GET", "/model_info")  # whether it answers at all
            return None
        return str(reply.json()["text"])

    async def weights_version(self) -> str:
        return str((await self._call("GET", "/model_info")).json()["weight_version"])

    async def compare(self, folder: Path | str) -> WeightComparison:
        """Compare the weights that it serves, bit for bit, with the files of a folder, cast to the engine's dtype."""
        return await self._compared(f"equals:{folder}")

    async def _compared(self, action: str) -> WeightComparison:
        return WeightComparison.of((await self._call("POST", "/weights_checker", {"action": action})).json()["ranks"])

    async def answers(self, limit_s: float) -> bool:
        """Return whether its scheduler is alive: tokens of running requests arrive, or one of its own if it is idle."""
        try:
            return (await self._http.get("/health", timeout=limit_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def listens(self, limit_s: float) -> bool:
        """Return the same as `answers`, also for a paused engine, which generates no token."""
        try:
            return (await self._http.get("/server_info", timeout=limit_s)).status_code == 200
        except httpx.HTTPError:
            return False

    async def publish(self, model_path: Path | str, version: str, torn: bool = False) -> float:
        """Swap in the weights at `model_path` and check their version; returns the seconds that it took.

        No reply mixes two versions: requests in flight are aborted and fail with EngineError, requests that arrive meanwhile wait
        for the new weights. Whatever happens, the engine gets a request to continue, but for one whose weights are `torn`, after
        `receive` failed: it stays paused if this fails too.
        """
        body = {"model_path": str(model_path), "flush_cache": False, "weight_version": version}
        return await self._swap(lambda: self._call("POST", "/update_weights_from_disk", body), version, torn)

    async def lend_memory(self) -> None:
        """Give the GPU memory of its KV cache to others, until `take_memory_back`; it is paused, and its cache is lost."""
        await self._pause()
        await self._flush()  # which also waits until it is idle: it would end if it were not
        await self._call("POST", "/release_memory_occupation", {"tags": LENT})

    async def take_memory_back(self) -> None:
        """Continue after `lend_memory`."""
        await self._call("POST", "/resume_memory_occupation", {"tags": LENT})
        await self.unpause()

    async def name(self, version: str) -> None:
        """Set the version of the weights that it serves."""
        await self._call("POST", "/update_weight_version", {"new_version": version, "abort_all_requests": False})

    async def load_adapter(self, folder: Path, version: str) -> None:
        """Serve the LoRA adapter at `folder` beside the model and other adapters; requests in flight are not disturbed."""
        await self._call("POST", "/load_lora_adapter", {"lora_name": adapter_name(version), "lora_path": str(folder)})

    async def unload_adapter(self, version: str) -> None:
        """Serve an adapter no more, once the last request that named it has ended."""
        await self._call("POST", "/unload_lora_adapter", {"lora_name": adapter_name(version)})

    async def receive(self, group: WeightGroup, buckets: Sequence[Bucket], version: str) -> WeightComparison:
        """Swap in the weights that rank 0 of a group sends, and compare them, bit for bit, with what it sends once more.

        Raises PublishError if they do not arrive whole. The engine then stays paused, under a version that no request names,
        until weights are published in it.
        """
        comparisons: list[WeightComparison] = []

        async def take() -> None:
            await self._call("POST", "/init_weights_update_group", _to_join(group))
            try:
                await self.name(f"a part of {version}")
                for bucket in buckets:
                    await self._call("POST", "/update_weights_from_distributed", _to_load(group, bucket))
                comparisons.append(await self._compared(f"equals_sent:{json.dumps(_to_compare(group, buckets))}"))
            finally:  # ends the wait of ranks that count on this engine
                with contextlib.suppress(EngineError, TimeoutError):
                    async with asyncio.timeout(LEAVE_S):
                        await self._call("POST", "/destroy_weights_update_group", {"group_name": group.name})
            if comparisons[0].different or comparisons[0].why:
                fault = comparisons[0].why or f"{', '.join(comparisons[0].different[:3])} differ from what was sent"
                raise EngineError(f"its weights are not those that were sent: {fault}")
            await self.name(version)

        await self._swap(take, version, torn=True)
        return comparisons[0]

    async def _swap(self, work: Callable[[], Awaitable[object]], version: str, torn: bool = False) -> float:
        started = time.monotonic()
        try:
            try:
                await self._pause()
                await work()
                await self._flush()  # prefixes in the cache come from the old weights
            except BaseException:
                if not torn:
                    with contextlib.suppress(EngineError):  # the first error says more
                        await self.unpause()
                raise
            await self.unpause()
            served = await self.weights_version()
        except EngineError as error:
            raise PublishError(f"weights {version} did not reach the engine at {self.url}: {error}") from error
        if served != version:
            raise PublishError(f"the engine at {self.url} serves weights {served!r} after {version!r} were published")
        return time.monotonic() - started

    async def _pause(self) -> None:
        """Let requests wait that arrive from now on, and abort those in flight.

        SGLang's own mode "abort" looks once in a second whether all have ended. "retract" puts them into its queue at once, where
        they end as soon as they are aborted.
        """
        await self._call("POST", "/pause_generation", {"mode": "retract"})
        await self._abort()

    async def _abort(self) -> None:
        await self._call("POST", "/abort_request", {"rid": "", "abort_all": True})

    async def _flush(self) -> None:
        """Empty the cache of a paused engine, which SGLang refuses while a request is in its queue."""
        deadline = time.monotonic() + FLUSH_S
        while True:
            try:
                await self._call("POST", "/flush_cache")
                return
            except EngineError:  # a request was on its way when the others were aborted
                if time.monotonic() > deadline:
                    raise
            await self._abort()
            await asyncio.sleep(0.02)

    async def unpause(self) -> None:
        """Resume the engine; harmless if it is not paused. Call it after a controller died during a publish."""
        await self._call("POST", "/continue_generation", {})

    def _checked(self, token_ids: Sequence[int]) -> list[int]:
        ids = [int(token) for token in token_ids]
        if not ids:
            raise EngineError("an empty prompt cannot be scored")
        # SGLang does not check: an unknown id indexes past the embedding and takes the whole server down.
        limit = self.vocabulary_size
        if min(ids) < 0 or (limit is not None and max(ids) >= limit):
            raise EngineError(
                f"token ids must be between 0 and {limit}, got {min(ids)} to {max(ids)}: tokenizer and model do not match"
            )
        return ids

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


def _to_join(group: WeightGroup) -> dict[str, Any]:
    return {
        "master_address": group.address,
        "master_port": group.port,
        "rank_offset": group.rank,
        "world_size": group.size,
        "group_name": group.name,
        "backend": group.backend,
    }


def _to_load(group: WeightGroup, bucket: Bucket) -> dict[str, Any]:
    return {
        "names": bucket.names,
        "dtypes": [bucket.dtype] * len(bucket.names),
        "shapes": bucket.shapes,
        "group_name": group.name,
        "flush_cache": False,
        "load_format": "flattened_bucket",
    }


def _to_compare(group: WeightGroup, buckets: Sequence[Bucket]) -> dict[str, Any]:
    """Return what environment/equality.py, our code in the engine, needs to compare the tensors that come next."""
    return {"group": group.name, "buckets": [asdict(each) for each in buckets]}
