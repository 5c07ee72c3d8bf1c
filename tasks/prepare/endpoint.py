"""Asks a model behind an OpenAI-compatible server many questions at once."""

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.http.client import model_client, usable_key
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policies.chat import ChatPolicy, ChatSettings
from nbrl.agent.policy import Sampling
from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import ConfigError, PrepareError
from nbrl.tasks.prepare.settings import RateSettings

T = TypeVar("T")
FAILED_IN_A_ROW = 8  # requests, each tried several times: then the server is at fault, not a question


class Replies:
    """Texts by what was asked, in an SQLite file; each is on the disk before the next line runs.

    Methods raise StorageError if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._named():
            # Several preparations may share the file; one waits while another writes.
            self._database = sqlite3.connect(path, timeout=60, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS replies (asked TEXT PRIMARY KEY, reply TEXT NOT NULL) WITHOUT ROWID"
            )

    def find(self, asked: str) -> str | None:
        with self._named():
            row = self._database.execute("SELECT reply FROM replies WHERE asked = ?", (asked,)).fetchone()
        return None if row is None else row[0]

    def keep(self, asked: str, reply: str) -> None:
        """Keep a reply; one that another process kept first stays."""
        with self._named():
            self._database.execute("INSERT OR IGNORE INTO replies VALUES (?, ?)", (asked, reply))

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(
                f"the replies of models in {self._path} cannot be used: {error}; look at the disk, or "
                "move the file away to ask anew"
            ) from error


def asked(**content: Any) -> str:
    """Return the name of a reply: the SHA-256 of all that was asked."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class NoReplyError(Exception):
    """The server gave no reply to this one question; the message says why."""


class Asker:
    """Asks one model; what it replied is kept in `replies` and found there again."""

    def __init__(self, policy: ChatPolicy, settings: RateSettings, replies: Replies) -> None:
        self._policy, self._settings, self._replies = policy, settings, replies
        self._failed_in_a_row = 0

    async def reply(self, messages: Sequence[Message], number: int) -> str:
        """Return the `number`-th reply to these messages.

        Raises NoReplyError if the server gave none, PrepareError after FAILED_IN_A_ROW requests without one.
        """
        name = asked(
            model=self._settings.model,
            messages=[[message.role, message.text] for message in messages],
            temperature=self._settings.temperature,
            max_tokens=self._settings.max_tokens,
            number=number,
            seeded=self._settings.seeded,
        )
        if (known := self._replies.find(name)) is not None:
            return known
        try:
            generation = await self._policy.generate(Prompt([], list(messages)), self._settings.max_tokens, number)
        except PolicyError as error:
            self._failed_in_a_row += not isinstance(error, RefusedError)
            if self._failed_in_a_row >= FAILED_IN_A_ROW:
                raise PrepareError(
                    f"{FAILED_IN_A_ROW} requests in a row failed, the last one so: {error}\n"
                    "All replies so far are kept: run the same command again once the server answers."
                ) from error
            raise NoReplyError(str(error)) from error
        self._failed_in_a_row = 0
        text = generation.text or ""
        self._replies.keep(name, text)
        return text


@asynccontextmanager
async def asker(settings: RateSettings, replies: Path, say: Callable[[str], None]) -> AsyncIterator[Asker]:
    """A connection to the model's server; `replies` is the file of the replies. Raises ConfigError if the key is not set."""
    key, hint = key_of(settings), f"set {settings.key_variable or 'key_variable'} to a key that the server accepts"
    async with model_client(settings.base_url, key, settings.concurrency, settings.timeout_s) as client:
        chat = ChatSettings(endpoint=settings.base_url, model=settings.model, seeded=settings.seeded)
        policy = ChatPolicy(client, chat, Sampling(temperature=settings.temperature), tell=say, key_hint=hint)
        with closing(Replies(replies)) as known:
            yield Asker(policy, settings, known)


def key_of(settings: RateSettings) -> str:
    """Return the server's key; empty if it needs none. Raises ConfigError if its variable holds none."""
    try:
        return usable_key(settings.key_variable)
    except ValueError as error:
        raise ConfigError(f"key_variable of {settings.model}: {error}") from error


async def each(items: Sequence[T], at_once: int, work: Callable[[T], Awaitable[None]], done: Callable[[int], None]) -> None:
    """Await `work` of every item, `at_once` at a time, and tell how many are done. The first exception ends all of it."""
    left, finished = iter(items), 0

    async def worker() -> None:
        nonlocal finished
        for item in left:
            await work(item)
            finished += 1
            done(finished)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(at_once, len(items))):
                group.create_task(worker())
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
