"""What the agent asks of a policy, and two policies: SGLang's native API and a script."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import httpx
from pydantic import BaseModel, ConfigDict, Field

from agent.errors import PolicyError
from agent.messages import Prompt
from agent.tokens import ChatTokenizer


class Sampling(BaseModel):
    """How actions are sampled. The engine's log-probs are those of the sampling distribution only at temperature 1, top_p 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)


@dataclass(frozen=True)
class Generation:
    """A sampled action: ids exactly as the engine returned them, one log-prob per id.

    `text` is set by policies that know no ids; each id is then `agent.tokens.UNKNOWN`.
    """

    token_ids: list[int]
    logprobs: list[float]
    weights_version: str
    finish: Literal["stop", "length"]
    text: str | None = None


class Policy(Protocol):
    """Samples one action after a prompt. Raises PolicyError for infrastructure faults only."""

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation: ...


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


class ScriptedPolicy:
    """Plays written actions: `script(step)` is the text of the action at each step. For tests, benchmarks and demonstrations."""

    def __init__(self, script: Callable[[int], str], tokenizer: ChatTokenizer) -> None:
        self._script, self._tokenizer, self._step = script, tokenizer, 0

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        ids = self._tokenizer.encode_action(self._script(self._step))
        self._step += 1
        finish: Literal["stop", "length"] = "stop" if len(ids) <= max_tokens else "length"
        ids = ids[:max_tokens]
        return Generation(ids, [0.0] * len(ids), "script", finish)
