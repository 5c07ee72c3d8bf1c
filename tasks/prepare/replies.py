"""Replies of models on the disk: one that was paid for is never asked for again, whatever was killed in between."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbrl.infra.errors import StorageError


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
    """The name of a reply: the SHA-256 of all that was asked."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
