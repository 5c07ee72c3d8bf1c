"""A policy behind any server of the OpenAI chat API: text in, text out; its trajectories can be scored, not trained on."""

import asyncio
import json
import random
import re
from collections.abc import Callable
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nbrl.agent.errors import REFUSALS, PolicyError, RefusedError
from nbrl.agent.grammar import Thinking
from nbrl.agent.http.address import check_address
from nbrl.agent.http.body import EncodingError, TooLargeError, body
from nbrl.agent.http.retry import RETRIED, Retry, retry_after
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.chat_messages import chat_messages
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.text import storable
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT, UNKNOWN

EXCERPT = 300
RETRIES = 5  # after 429, 5xx, time-outs and broken connections
LONGEST_WAIT_S = 60.0  # before a retry; a server that requests a longer wait is given up
ANSWER_BYTES = 16 << 20
MOST_TOKENS = 1 << 20  # a server that says it sampled more is not believed
LIMIT = "max_tokens"
OTHER_LIMIT = "max_completion_tokens"  # what newer models of OpenAI want the limit to be called, as their refusal says
PARAMETERS = ("top_p", "temperature")
UPSTREAM = 502  # what an error without a status of its own counts as
LENGTH = ("length", "max_tokens")
MOVED = "correct endpoint: redirects are not followed"
REFUSED = "look at the model, its context length against agent.context_tokens, and sees_images"
HINTS = {
    301: MOVED,
    302: MOVED,
    307: MOVED,
    308: MOVED,
    400: REFUSED,
    402: "the account has no credit left",
    404: "correct endpoint (what stands before /chat/completions) or model",
    413: "lower agent.context_tokens",
    422: REFUSED,
    429: "ask less at once, or try again later",
}
LATER = "look at the server, or try again later"


class ChatSettings(BaseModel):
    """A model behind the OpenAI chat API."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    endpoint: str = Field(description="what stands before /chat/completions, such as https://host/v1")
    model: str = Field(min_length=1)
    sees_images: bool = Field(False, description="send pictures; else the model reads only their sizes")
    seeded: bool = Field(False, description="send each request's seed; not every server takes one")

    @field_validator("endpoint")
    @classmethod
    def _address(cls, value: str) -> str:
        check_address(value)
        return value.rstrip("/")


class ChatPolicy:
    """POSTs conversations to {endpoint}/chat/completions by a client that has the key in its header, if one is needed.

    `tell` hears of each further try before it is waited for. `key_hint` says what to do about a key that is refused.
    The ids of a Generation are UNKNOWN, as many as the server says it sampled, or else estimated. With native thinking the
    server's `reasoning_content` (or `reasoning`, or parts of thinking) comes back inside think tags before the content, empty
    ones where the server keeps the thinking to itself, and the thinking of earlier turns is not sent again; with thinking in
    tags it is not part of the action.
    A sampling parameter that the server refuses by name is left out from then on: one at 1 or, where it is not `firm`, any.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        settings: ChatSettings,
        sampling: Sampling,
        thinking: Thinking = "tag",
        tell: Callable[[str], None] = lambda _: None,
        key_hint: str = "give the client a key that the server accepts for this model",
        firm: bool = True,
    ) -> None:
        self._client, self._settings, self._sampling, self._thinking = client, settings, sampling, thinking
        self._tell, self._key_hint, self._firm = tell, key_hint, firm
        self._url = f"{settings.endpoint}/chat/completions"
        self._limit = LIMIT
        self._refused: set[str] = set()  # sampling parameters
        self._estimate = EstimatingRenderer()

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        content: dict[str, Any] = {
            "model": self._settings.model,
            "messages": chat_messages(prompt.messages, self._settings.sees_images, self._thinking),
            **self._sampling.model_dump(exclude=self._refused),
            self._limit: max_tokens,
        }
        if self._settings.seeded:
            content["seed"] = seed
        answer = await self._post(content)
        try:
            reply = json.loads(answer)
            choice = reply["choices"][0]
            finish, message = choice.get("finish_reason"), choice["message"]
            text = storable(self._text(message))
            count = (reply.get("usage") or {}).get("completion_tokens")
            version = storable(str(reply.get("model") or self._settings.model))
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise PolicyError(f"{self._url} answered something that is no chat completion: {self._excerpt(answer)}") from error
        if not isinstance(count, int) or not 0 < count <= MOST_TOKENS:
            count = len(self._estimate.encode_action(text))
        if finish in ("abort", "error"):
            raise PolicyError(f"{self._url} ended a generation with {finish!r}; {LATER}")
        ended: Literal["stop", "length"] = "length" if finish in LENGTH else "stop"
        return Generation([UNKNOWN] * count, [0.0] * count, version, ended, text)

    def _text(self, message: dict[str, Any]) -> str:
        content = _joined(message.get("content"), "text")
        if self._thinking != "native":
            return content
        kept = message.get("reasoning_content") or message.get("reasoning") or _joined(message.get("content"), "thinking")
        thought = _joined(kept, "text").replace(THINK, "").replace(THOUGHT, "")
        if content.lstrip().startswith(THINK) or (not thought and THOUGHT in content):
            return content
        return f"{THINK}{thought}{THOUGHT}\n{content}"

    async def _post(self, content: dict[str, Any]) -> bytes:
        """Return the body of the first answer with status 200 within the retry budget. Raises PolicyError."""
        retry = Retry(RETRIES, LONGEST_WAIT_S, random.random)
        while True:
            try:
                status, answer, asks = await self._once(content)
            except httpx.HTTPError as error:
                short, failed, wait_s = f"did not answer: {type(error).__name__}", None, None
                reason = f"{short}: {self._hide(str(error))}"
            else:
                failed = _fault(answer) if status == 200 else status
                if failed is None:
                    return answer
                if failed in (400, 422) and self._changed(content, answer):
                    continue
                # Nothing is quoted where the server may repeat the key.
                quoted = "" if failed in (401, 403) else f" ({self._excerpt(answer)})"
                short, wait_s = (
                    f"answered {status}" + (f" with the error {failed}" if failed != status else ""),
                    retry_after(asks),
                )
                reason = f"{short}{quoted}"
            wait = retry.next_wait(wait_s) if failed is None or failed in RETRIED else None
            if wait is None:
                hint = self._key_hint if failed in (401, 403) else HINTS.get(failed or 0, LATER)
                if failed in (400, 422) and (named := _named(content, answer)):
                    hint = f"at 1 the request goes without {' and '.join(named)}; else {hint}"
                tries = f" (tried {retry.tries} times)" if retry.tries > 1 else ""
                kind = RefusedError if failed in REFUSALS else PolicyError
                raise kind(f"{self._url} {reason}{tries}; {hint}")
            self._tell(f"the model server {short}; trying again in {wait:.1f} s ({retry.tries} of {RETRIES + 1})")
            await asyncio.sleep(wait)

    def _changed(self, content: dict[str, Any], answer: bytes) -> bool:
        """Take what the refusal `answer` names out of the request, if it can do without."""
        if OTHER_LIMIT not in content and OTHER_LIMIT.encode() in answer:
            self._limit, content[OTHER_LIMIT] = OTHER_LIMIT, content.pop(LIMIT)
            return True
        named = [name for name in _named(content, answer) if content[name] == 1 or not self._firm]
        if not named:
            return False
        # Of two that the server does not take together, the first; the one that it says it is about, if it does.
        name = next((name for name in named if re.search(rf'"param":\s*"{name}"'.encode(), answer)), named[0])
        del content[name]
        if name not in self._refused:
            self._refused.add(name)
            self._tell(f"the model server does not take {name}; it is asked without")
        return True

    async def _once(self, content: dict[str, Any]) -> tuple[int, bytes, str | None]:
        """Status, body and Retry-After of one answer. Raises PolicyError for a body that is too large or badly encoded."""
        async with self._client.stream("POST", self._url, json=content, headers={"Accept-Encoding": "gzip, deflate"}) as response:
            try:
                answer = await body(response.aiter_raw(), response.headers.get("Content-Encoding", ""), ANSWER_BYTES)
            except (TooLargeError, EncodingError) as error:
                raise PolicyError(f"{self._url} gave an answer that cannot be read: {error}; {LATER}") from None
            return response.status_code, answer, response.headers.get("Retry-After")

    def _excerpt(self, answer: bytes) -> str:
        return " ".join(self._hide(answer.decode("utf-8", "replace")).split())[:EXCERPT]

    def _hide(self, text: str) -> str:
        key = self._client.headers.get("Authorization", "").removeprefix("Bearer ")
        return text.replace(key, "[key]") if key else text


def _named(content: dict[str, Any], refusal: bytes) -> list[str]:
    """The sampling parameters of a request that a refusal of it names."""
    return [name for name in PARAMETERS if name in content and re.search(rf"\b{name}\b".encode(), refusal)]


def _joined(said: Any, kind: str) -> str:
    """The text of a message or, where it comes in parts, of its parts of a kind, whose own text may be parts again."""
    if isinstance(said, list):
        parts = [part for part in said if isinstance(part, dict) and part.get("type") == kind]
        return "".join(_joined(part.get(kind), "text") for part in parts)
    return said if isinstance(said, str) and kind == "text" else ""


def _fault(answer: bytes) -> int | None:
    """The HTTP status that an answer stands for which came with 200, but with an error or without choices; else None."""
    try:
        reply = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict):
        return None
    match reply.get("choices"):
        case [{"error": error}, *_] if error:
            pass
        case None | [] if reply.get("error"):
            error = reply["error"]
        case None | []:
            return UPSTREAM if "choices" in reply else None
        case _:
            return None
    code = str(error.get("code")) if isinstance(error, dict) else ""
    return int(code) if re.fullmatch("[45][0-9]{2}", code) else UPSTREAM
