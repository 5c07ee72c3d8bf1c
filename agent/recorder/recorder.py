"""Answers the requests of one trajectory's program by the policy, and keeps what the engine read and sampled.

A request holds a whole conversation. Where it begins with a prompt that was answered before and with that answer as it was
given, those ids are taken, and only the rest is tokenised: so the ids that are trained are those that the engine sampled.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from nbrl.agent.errors import AgentError, RefusedError, TokenizerError
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, Finish, RequestError
from nbrl.agent.recorder.tree import RequestTree, TokenRun
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import cut_middle, turns_as_text
from nbrl.agent.tokens.conversation import Conversations, Verbatim
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT
from nbrl.agent.trajectory import Node, Step

T = TypeVar("T")
BYTES_PER_TOKEN = 64  # of a body: no conversation has so many on the average
SHORT_BYTES = 16_000  # of a request: what takes longer to render and tokenise is done beside the event loop
CONTEXT = "context_length_exceeded"  # the code by which clients know that a conversation is too long
CallParser = Callable[[str, Sequence[Any]], Awaitable[tuple[str, list[dict[str, Any]]]]]
"""Returns the text without its calls of tools, and the calls, each with `name` and its `arguments` as JSON."""


@dataclass(frozen=True)
class Answered:
    """A prompt that was answered, the `turn`-th time in its conversation: the length and digest of its text, what was sampled,
    whether that was closed, and where it ends in the tree.
    """

    turn: int
    length: int
    digest: bytes
    said: str
    closed: bool
    end: TokenRun


class Recorder:
    """One trajectory of a program; requests may come at once. After `close` each is refused.

    `fault` is the first infrastructure fault, for which the program is not to blame. `again` counts tokens of a conversation
    that had to be read once more, because its earlier turns came back otherwise than they were: what a template that drops
    thoughts costs, or a program that edits. `answer` is what the program posted as such.
    """

    def __init__(
        self,
        conversations: Conversations,
        policy: Policy,
        settings: AgentSettings,
        seed: int,
        calls: CallParser | None = None,
        replied: Callable[[list[Step]], None] = lambda _: None,
        parser_key: str = "agent.tool_parser",
    ) -> None:
        """Begin a trajectory. `replied` is called with the steps so far, after each request that is answered; `parser_key` is
        the setting of `calls`.
        """
        self._conversations, self._policy, self._settings, self._seed = conversations, policy, settings, seed
        self._calls, self._parser_key = calls, parser_key
        self._tree = RequestTree()
        self._answered: list[Answered] = []
        self._called: dict[str, tuple[list[dict[str, Any]], str]] = {}  # by the id of the first call: all of them, and the text
        self._asked, self._closed = 0, False
        self.steps: list[Step] = []
        self.fault: AgentError | None = None
        self.again = 0
        self.answer: str | None = None
        self._replied = replied

    @property
    def nodes(self) -> list[Node]:
        return self._tree.nodes()

    @property
    def spent(self) -> bool:
        """Return whether a request was refused because there had been as many as the agent may make."""
        return self._asked > self._settings.max_steps

    def close(self) -> None:
        """Refuse all further requests, and those that wait for their answer."""
        self._closed = True

    async def reply(self, request: ChatRequest) -> ChatReply:
        """Answer a request. Raises RequestError."""
        self.check()
        self._asked += 1
        if self.spent:
            raise RequestError(f"this trajectory may make {self._settings.max_steps} requests, and has", "step_limit", 403)
        if request.tools and self._calls is None:
            raise RequestError(f"calls of tools are read by {self._parser_key}, which is not set; set it, or send no tools")
        if request.size > BYTES_PER_TOKEN * self._settings.context_tokens:  # before it is rendered, which would take long
            raise self._too_long(f"the request has {request.size} bytes")
        number, clock = self._asked - 1, time.monotonic()
        try:
            ids, text, known = await self._prompt(request)
            room = min(self._settings.context_tokens - len(ids), self._settings.action_tokens, request.max_tokens or 2**31)
            generation = await self._policy.generate(Prompt([ids], [], request.stop), room, self._seed + number)
        except RequestError:
            raise
        except Exception as error:
            if isinstance(error, RefusedError) and self.steps:
                raise self._too_long("the engine refuses this conversation") from error
            raise self._failed(error) from error
        self.check()
        start, new = self._tree.add(ids)
        if _turns(request) != (known.turn if known else 0):
            self.again += max(0, new - len(self._conversations.encode(_asking(request))))
        return await self._record(request, generation, start, len(ids), text, time.monotonic() - clock)

    def check(self) -> None:
        """Raises RequestError if no request is answered any more."""
        if self._closed or self.fault is not None:
            raise RequestError("this trajectory has ended", "ended", 410)

    def _failed(self, error: Exception) -> RequestError:
        """Return the refusal of a request for which the host, and not the program, is to blame."""
        fault = error if isinstance(error, AgentError) else AgentError(f"{type(error).__name__}: {error}")
        self.fault = self.fault or fault
        return RequestError("the engine does not answer", "engine", 503)

    def _too_long(self, what: str) -> RequestError:
        most = self._settings.context_tokens  # litellm looks for these words, not for the code
        return RequestError(f"This model's maximum context length is {most} tokens; {what}", CONTEXT)

    async def _prompt(self, request: ChatRequest) -> tuple[list[int], str, Answered | None]:
        """Return the ids of a prompt, its text, and the answered conversation that it continues."""
        messages, templates = [self._as_sampled(message) for message in request.messages], self._conversations
        beside = asyncio.to_thread if request.size > SHORT_BYTES else _here
        try:
            text = await beside(templates.render, messages, request.tools)
        except TokenizerError as error:
            raise RequestError(str(error)) from error
        known, left = self._known(text)
        behind = await beside(templates.encode, left)
        ids = [*([] if known is None else self._tree.ids(known.end)), *behind]
        if len(ids) >= self._settings.context_tokens:
            raise self._too_long(f"the conversation has {len(ids)}")
        return ids, text, known

    def _known(self, text: str) -> tuple[Answered | None, str]:
        """Return the longest answered conversation with which a text begins, and what comes after it."""
        found: tuple[Answered, str] | None = None
        digest, place = sha256(), 0
        for each in sorted(self._answered, key=lambda answered: answered.length):
            if each.length > len(text):
                break
            digest.update(text[place : each.length].encode())
            place = each.length
            left = self._conversations.behind(text[place:], each.said) if digest.digest() == each.digest else None
            # An answer that was closed is the whole turn, or another one.
            if left is not None and (not each.closed or left.startswith(self._conversations.end)):
                found = (each, left) if found is None or len(left) <= len(found[1]) else found
        if found is None:
            return None, text
        answered, left = found
        return answered, left.removeprefix(self._conversations.end) if answered.closed else left

    async def _record(
        self, request: ChatRequest, generation: Generation, start: TokenRun, count: int, text: str, seconds: float
    ) -> ChatReply:
        if not generation.token_ids:
            raise self._failed(AgentError("the engine sampled no token"))
        path = self._tree.sampled(start, generation)
        tokenizer = self._conversations.tokenizer
        closed = generation.token_ids[-1] in tokenizer.stop_ids
        whole = tokenizer.decode(generation.token_ids)
        said = whole.removeprefix(tokenizer.opened)
        forged = self._conversations.forges(said, generation.token_ids[: -1 if closed else None])
        if not forged:  # what spells a control token in plain ids cannot be distinguished from one by its text
            self._answered.append(
                Answered(_turns(request) + 1, len(text), sha256(text.encode()).digest(), said, closed, path.end)
            )
        thought, content = split_thought(whole) if tokenizer.thinks else ("", whole)
        cut = min((found for stop in request.stop if (found := content.find(stop)) >= 0), default=len(content))
        content, calls = content[:cut], list[dict[str, Any]]()
        step = Step(
            kind="reply",
            think=thought,
            code=content,
            observation=cut_middle(_asking(request), self._settings.observation_chars),
            policy_seconds=seconds,
        )
        self.steps.append(step)
        self._replied(self.steps)
        raw = content
        if request.tools and self._calls is not None:
            content, parsed = await self._parsed(self._calls, content, request)
            calls = [_call(path.step, place, call) for place, call in enumerate(parsed)]
        if calls and not forged:
            self._called[calls[0]["id"]] = (calls, raw)
        finish: Finish = "tool_calls" if calls else "stop" if generation.finish == "stop" else "length"
        return ChatReply(path.step, content, thought, calls, finish, count, len(generation.token_ids))

    async def _parsed(self, calls: CallParser, text: str, request: ChatRequest) -> tuple[str, list[dict[str, Any]]]:
        try:
            return await calls(text, request.tools)
        except RefusedError as error:
            raise RequestError(f"the engine cannot read calls of these tools: {error}") from error
        except Exception as error:
            raise self._failed(error) from error

    def _as_sampled(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return an assistant's message with calls as the text that was sampled, if it is one that was given here."""
        calls = message.get("tool_calls")
        if message["role"] != "assistant" or not calls or calls[0]["id"] not in self._called:
            return message
        given, raw = self._called[calls[0]["id"]]
        same = [(call["id"], call["function"]["name"], _arguments(call)) for call in given]
        if [(call["id"], call["function"]["name"], _arguments(call)) for call in calls] != same:
            return message
        return {**{name: each for name, each in message.items() if name != "tool_calls"}, "content": Verbatim(raw)}


async def _here(work: Callable[..., T], *given: Any) -> T:
    return work(*given)


def split_thought(text: str) -> tuple[str, str]:
    """Return thought and answer of a sampled text."""
    if not text.lstrip().startswith(THINK):
        return "", text
    thought, _, answer = text.lstrip().removeprefix(THINK).partition(THOUGHT)
    return thought.strip("\n"), answer.lstrip("\n")


def _call(step: int, place: int, call: dict[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": call["arguments"]}
    return {"id": f"call_{step}_{place}", "type": "function", "function": function}


def _arguments(call: dict[str, Any]) -> Any:
    """Return the arguments of a call as an object, whichever way they are written."""
    arguments = call["function"]["arguments"]
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _turns(request: ChatRequest) -> int:
    return sum(message["role"] == "assistant" for message in request.messages)


def _asking(request: ChatRequest) -> str:
    """Return what a request says after the assistant's last turn, for readers."""
    last = max((place for place, each in enumerate(request.messages) if each["role"] == "assistant"), default=-1)
    return turns_as_text((each["role"], each["content"]) for each in request.messages[last + 1 :])
