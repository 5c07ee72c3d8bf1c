"""Asks a grader, a model behind an OpenAI-compatible server, for grades of many items at once.

A grade is kept on a storage as soon as it is there, by the content of what was graded: it is paid for once, for all users of the
storage.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.http.client import model_client, usable_key
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Sampling
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import RewardError
from nbrl.tasks.layout.runs import judgement
from nbrl.tasks.reward.judge.settings import GraderSettings

SEED = 0
SHOWN_CHARS, FAULT_CHARS = 80, 300
REPLY_CHARS = 4000  # of a reply that is kept
PARALLEL = 16  # grades that are read at once
ItemT = TypeVar("ItemT", bound=tuple[Any, ...])


class UngradedError(Exception):
    """The grader gave this one item no grade; the message says why."""


class RepelledError(UngradedError):
    """The grader refused the prompt, or replied with no grade: the item may be the cause."""


@dataclass(frozen=True)
class Grading(Generic[ItemT]):
    """The request for the grade of an item, and the possible grades. An item is a tuple of values that JSON has.

    `said` is everything that the grader reads besides the item. `messages` returns a prompt, with True one after a reply that
    could not be read. An item that repels the grader has the grade `repelled` if there are `probes` for it and the grader grades
    all of them.
    """

    place: str  # of the settings in a recipe
    settings: GraderSettings
    said: Sequence[str]
    grades: Collection[str]
    messages: Callable[[ItemT, bool], list[Message]]
    read: Callable[[str], str | None]
    probes: Callable[[ItemT], list[ItemT]] = lambda _: []
    repelled: str = ""

    @property
    def said_digest(self) -> str:
        return hashlib.sha256(json.dumps(self.said).encode()).hexdigest()

    def key(self, item: ItemT) -> str:
        """Return the key of a grade: made of the model, its instructions, the limit of tokens, and the item."""
        content = [self.settings.name, self.said_digest, self.settings.max_tokens, *item]
        return judgement(hashlib.sha256(json.dumps(content).encode()).hexdigest())

    def find(self, storage: Storage, items: Iterable[ItemT]) -> dict[ItemT, str]:
        """Return the grades that are on the storage. Raises DamagedError for one that is not what was written."""

        def read(item: ItemT) -> tuple[ItemT, str | None]:
            try:
                return item, self._stored(storage, item)
            except MissingError:
                return item, None

        with ThreadPoolExecutor(PARALLEL) as pool:
            return {item: grade for item, grade in pool.map(read, items) if grade is not None}

    def keep(self, storage: Storage, item: ItemT, grade: str, reply: str) -> str:
        """Keep a grade; returns the one that counts: another process's, where that was first."""
        fields = {"grade": grade, "model": self.settings.name, "rubric": self.said_digest, "reply": reply[:REPLY_CHARS]}
        return grade if storage.create_json(self.key(item), fields) else self._stored(storage, item)

    def _stored(self, storage: Storage, item: ItemT) -> str:
        key = self.key(item)
        grade = storage.read_json(key).get("grade")
        if grade not in self.grades:
            raise DamagedError(
                f"{storage.uri(key)} is damaged: it holds no grade; bring it back from a copy, or delete it to have "
                "the model asked again"
            )
        return str(grade)


async def ask_all(
    items: Collection[ItemT],
    grading: Grading[ItemT],
    storage: Storage,
    say: Callable[[str], None],
    failed: Callable[[ItemT, str], None],
    graded: Callable[[ItemT], None] = lambda _: None,
) -> dict[ItemT, str]:
    """Return the grades of these items; the grader is asked only for those that are not on the storage.

    `graded` is called for each item that has a grade, `failed` for each that gets none, with the reason; what they raise ends all
    requests. Raises RewardError if the key is not set.
    """
    grades = await asyncio.to_thread(grading.find, storage, items)
    for item in grades:
        graded(item)
    if not (left := [item for item in items if item not in grades]):
        return grades
    settings, place, waiting, said = grading.settings, grading.place, iter(left), set[str]()
    try:
        key = usable_key(settings.key)
    except ValueError as error:
        raise RewardError(f"{place}.key: {error}") from error

    def say_once(text: str) -> None:
        """Report each fault of the server once, since many requests have the same."""
        trouble = text.partition(";")[0]
        if trouble not in said:
            said.add(trouble)
            say(text)

    async with model_client(settings.base_url, key, settings.concurrency, settings.timeout_s) as client:
        chat = ChatSettings(endpoint=settings.base_url, model=settings.name, seeded=True)
        hint = f"set {settings.key or f'{place}.key'} to a key that the server accepts"
        policy = ChatPolicy(client, chat, Sampling(temperature=0), report=say_once, key_hint=hint, firm=False)

        async def worker() -> None:
            for item in waiting:
                try:
                    grade, reply = await _graded(policy, item, grading)
                except UngradedError as error:
                    failed(item, " ".join(str(error).split())[:FAULT_CHARS])
                    continue
                grades[item] = await asyncio.to_thread(grading.keep, storage, item, grade, reply)
                graded(item)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(settings.concurrency, len(left))):
                    group.create_task(worker())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return grades


async def _graded(policy: ChatPolicy, item: ItemT, grading: Grading[ItemT]) -> tuple[str, str]:
    """Return a grade with the reply that gave it, or with the reason why the item repels the grader. Raises UngradedError."""
    try:
        return await _one(policy, item, grading)
    except RepelledError as error:
        probes = grading.probes(item)
        if not probes or item in probes:
            raise
        try:
            for probe in probes:
                await _one(policy, probe, grading)
        except UngradedError:
            raise error from None  # another item would have met it too
        return grading.repelled, str(error)


async def _one(policy: ChatPolicy, item: ItemT, grading: Grading[ItemT]) -> tuple[str, str]:
    """Return a grade with the reply that gave it. Raises UngradedError."""
    settings, text = grading.settings, ""
    for attempt in range(settings.attempts):
        try:
            reply = await policy.generate(Prompt([], grading.messages(item, attempt > 0)), settings.max_tokens, SEED)
        except RefusedError as error:
            raise RepelledError(f"{settings.name} failed: {error}") from error
        except PolicyError as error:
            raise UngradedError(f"{settings.name} failed: {error}") from error
        text = reply.text or ""
        grade = grading.read(text) if reply.finish == "stop" else None
        if grade is not None:
            return grade, text
    cut = "" if reply.finish == "stop" else f" (cut at {grading.place}.max_tokens {settings.max_tokens})"
    shown = text.strip()[-SHOWN_CHARS:]
    raise RepelledError(f"{settings.name} gave no grade in {settings.attempts} replies; the last ends{cut} with {shown!r}")
