"""A policy behind any server of the OpenAI chat API: text in, text out; its trajectories can be scored, not trained on."""

import asyncio
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import httpx

from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.grammar import Thinking
from nbrl.agent.http.client import RETRIED, BodyTooLargeError, EncodingError, Retry, body, retry_after
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.completion import Completion, chat_messages, fault, read
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.text import storable
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import UNKNOWN

EXCERPT = 300
RETRIES = 5  # after 429, 5xx, time-outs and broken connections
LONGEST_WAIT_S = 60.0  # before a retry; a server that requests a longer wait is given up
ANSWER_BYTES = 16 << 20
LIMIT = "max_tokens"
OTHER_LIMIT = "max_completion_tokens"  # what newer models of OpenAI want the limit to be called, as their refusal says
PARAMETERS = {"top_p": "[tT]op[_ -]?[pP]", "temperature": "[tT]emperature"}  # as refusals spell them
UNREADABLE = 0  # in the place of a status
# Faults whose cause is never the conversation: the key, the credit, the address or the load. Of any other the server is asked
# to answer another one.
OF_ANY = {401, 402, 405, 407, 425, 429, 503, 529}
OTHER = [{"role": "user", "content": "Say yes."}]
MOVED = "correct endpoint: redirects are not followed"
REFUSED = "look at the model, its context length against agent.context_tokens, and sees_images"
HINTS = {
    301: MOVED,
    302: MOVED,
    307: MOVED,
    308: MOVED,
    400: REFUSED,
    402: "the account has no credit left",
    404: "correct endpoint (the part before /chat/completions) or model",
    413: "lower agent.context_tokens",
    422: REFUSED,
    429: "ask less at once, or try again later",
}
LATER = "look at the server, or try again later"


class _Failure(NamedTuple):
    """A try without a completion: the status, the fault in a few words and the rest of it, whether it may pass, and after how
    many seconds the server wants to be tried again.
    """

    status: int | None
    short: str
    detail: str
    passing: bool = False
    asks: float | None = None

    def may_be_of_content(self) -> bool:
        status = self.status
        return status is not None and (status == UNREADABLE or status >= 400) and status not in OF_ANY


class ChatPolicy:
    """POSTs conversations to {endpoint}/chat/completions by a client that has the key in its header, if one is needed.

    `report` is called with each further try before the wait for it. `key_hint` says what to do about a key that is refused. The
    ids of a Generation are UNKNOWN, as many as the server says it sampled, or else estimated. With native thinking the server's
    `reasoning_content` (or `reasoning`, or parts of thinking) comes back inside think tags before the content, empty ones where
    the server keeps the thinking to itself, and the thinking of earlier turns is not sent again; with thinking in tags it is not
    part of the action. A sampling parameter that the server refuses by name is left out from then on: one at 1 or, where it is
    not `firm`, any.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        settings: ChatSettings,
        sampling: Sampling,
        thinking: Thinking = "tag",
        report: Callable[[str], None] = lambda _: None,
        key_hint: str = "give the client a key that the server accepts for this model",
        firm: bool = True,
    ) -> None:
        self._client, self._settings, self._sampling, self._thinking = client, settings, sampling, thinking
        self._report, self._key_hint, self._firm = report, key_hint, firm
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
        done = await self._post(content)
        ended: Literal["stop", "length"] = "length" if done.finish in ("length", "max_tokens") else "stop"
        count = done.tokens or len(self._estimate.encode_action(done.text))
        version = done.model or storable(self._settings.model)
        return Generation([UNKNOWN] * count, [0.0] * count, version, ended, done.text)

    async def _post(self, content: dict[str, Any]) -> Completion:
        """Return the first completion within the retry budget; parameters that the server does not take leave `content`.

        Raises RefusedError where the server answers another conversation, else PolicyError.
        """
        retry, other, named = Retry(RETRIES, LONGEST_WAIT_S), False, list[str]()
        while isinstance(failed := await self._tried(content), _Failure):
            wait = retry.next_wait(failed.asks) if failed.passing else None
            if wait is not None:
                self._report(f"the model server {failed.short}; trying again in {wait:.1f} s ({retry.tries} of {RETRIES + 1})")
                await asyncio.sleep(wait)
                other = False
                continue
            if failed.may_be_of_content() and not other:
                refusal = await self._refusal(content)
                if refusal and self._changed(content, refusal):
                    continue
                other, named = refusal is None, _named(content, refusal or b"")
                if other and (failed.passing or failed.status == UNREADABLE):
                    continue  # the server may have come back just now
            other = other and failed.may_be_of_content()
            keyless = failed.status == 401 or (failed.status == 403 and not other)
            hint = self._key_hint if keyless else REFUSED if other else HINTS.get(failed.status or 0, LATER)
            if named:
                hint = f"at 1 the request goes without {' and '.join(named)}; else {hint}"
            tries = f" (tried {retry.tries} times)" if retry.tries > 1 else ""
            raise (RefusedError if other else PolicyError)(f"{self._url} {failed.short}{failed.detail}{tries}; {hint}")
        return failed

    async def _tried(self, content: dict[str, Any]) -> "Completion | _Failure":
        """Try once."""
        answer = b""
        try:
            status, answer, asks = await self._once(content)
            failed = fault(answer) if status == 200 else (status, "")
            if failed is None:
                return read(answer, self._thinking)
        except httpx.HTTPError as error:
            return _Failure(None, f"did not answer: {type(error).__name__}", f": {self._hide(str(error))}", True)
        except (BodyTooLargeError, EncodingError) as error:
            return _Failure(UNREADABLE, "gave an answer that cannot be read", f": {error}")
        except ValueError:
            return _Failure(UNREADABLE, "answered something that is no chat completion", f": {self._excerpt(answer)}")
        # Nothing is quoted where the server may repeat the key.
        meant, words = failed
        quoted = "" if meant in (401, 403) else f" ({self._excerpt(answer)})"
        short = f"answered {status}" + (f" with {words}" if words else "")
        return _Failure(meant, short, quoted, meant in RETRIED, retry_after(asks))

    async def _refusal(self, content: dict[str, Any]) -> bytes | None:
        """Return what the server answers to the same request with another conversation; None if that is a completion."""
        try:
            status, answer, _ = await self._once({**content, "messages": OTHER})
            if status == 200 and fault(answer) is None:
                read(answer, self._thinking)
                return None
        except (httpx.HTTPError, BodyTooLargeError, EncodingError, ValueError):
            return b""
        return answer if status in (400, 422) else b""

    def _changed(self, content: dict[str, Any], answer: bytes) -> bool:
        """Remove from this request those parameters that `answer`, a refusal, names and that it can do without."""
        if OTHER_LIMIT not in content and OTHER_LIMIT.encode() in answer:
            self._limit, content[OTHER_LIMIT] = OTHER_LIMIT, content.pop(LIMIT)
            return True
        named = [name for name in _named(content, answer) if content[name] == 1 or not self._firm]
        if not named:
            return False
        # Of two that the server does not take together, the first; the one that it says it is about, if it does.
        name = next((name for name in named if re.search(rf'"param":\s*"{PARAMETERS[name]}"'.encode(), answer)), named[0])
        del content[name]
        if name not in self._refused:
            self._refused.add(name)
            self._report(f"the model server does not take {name}; it is asked without")
        return True

    async def _once(self, content: dict[str, Any]) -> tuple[int, bytes, str | None]:
        """Return status, body and Retry-After of one answer. Raises TooLargeError, EncodingError or httpx.HTTPError."""
        async with self._client.stream("POST", self._url, json=content, headers={"Accept-Encoding": "gzip, deflate"}) as response:
            answer = await body(response.aiter_raw(), response.headers.get("Content-Encoding", ""), ANSWER_BYTES)
            return response.status_code, answer, response.headers.get("Retry-After")

    def _excerpt(self, answer: bytes) -> str:
        return " ".join(self._hide(answer.decode("utf-8", "replace")).split())[:EXCERPT]

    def _hide(self, text: str) -> str:
        key = self._client.headers.get("Authorization", "").removeprefix("Bearer ")
        return text.replace(key, "[key]") if key else text


def _named(content: dict[str, Any], refusal: bytes) -> list[str]:
    """Return the sampling parameters of a request that its refusal names."""
    return [name for name, spelt in PARAMETERS.items() if name in content and re.search(rf"\b{spelt}\b".encode(), refusal)]
