"""A policy behind SGLang's native API."""

from typing import Any

import httpx

from agent.errors import PolicyError
from agent.messages import Prompt
from agent.policy import Generation, Sampling


class SglangPolicy:
    """A SGLang server's /generate: token ids in, token ids and log-probs out.

    `seeded` says that the server samples by request seeds (deterministic inference); others draw from a state of their own.
    """

    def __init__(self, client: httpx.AsyncClient, url: str, stop_id: int, sampling: Sampling, seeded: bool = False) -> None:
        self._client, self._url = client, url.rstrip("/") + "/generate"
        self._stop_id, self._sampling, self._seeded = stop_id, sampling, seeded

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        body: dict[str, Any] = {
            "input_ids": prompt.token_ids,
            "return_logprob": True,
            "sampling_params": {
                "temperature": self._sampling.temperature,
                "top_p": self._sampling.top_p,
                "max_new_tokens": max_tokens,
                "stop_token_ids": [self._stop_id],
            },
        }
        if self._seeded:
            body["sampling_params"]["sampling_seed"] = seed
        try:
            response = await self._client.post(self._url, json=body)
            response.raise_for_status()
            reply = response.json()
            meta = reply["meta_info"]
            finish = meta["finish_reason"]["type"]
            logprobs = [float(entry[0]) for entry in meta["output_token_logprobs"]]
            ids = [int(entry[1]) for entry in meta["output_token_logprobs"]]
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise PolicyError(
                f"the engine at {self._url} did not answer a generation: {type(error).__name__}: {error}"
            ) from error
        if finish not in ("stop", "length"):
            raise PolicyError(f"the engine at {self._url} ended a generation with {finish!r}; it is retried")
        return Generation(ids, logprobs, str(meta.get("weight_version", "")), finish)
