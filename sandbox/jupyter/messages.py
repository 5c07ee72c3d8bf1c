"""Encodes and decodes Jupyter messages for the client: signed requests out, checked messages in.

jupyter_client's `Session` also handles dates, extraction of headers and a history of digests; this is the part that a client
of an untrusted kernel needs. Whatever the kernel sends, `parse` returns a message or None and never raises.
"""

import hmac
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nbrl.sandbox import untrusted

_DELIMITER = b"<IDS|MSG>"


@dataclass(frozen=True)
class KernelMessage:
    """A message of the kernel: its type, the id of the request it answers (`parent`), its content and the content's bytes."""

    kind: str
    parent: str
    content: dict[str, Any]
    size: int


class MessageCodec:
    """Signs and checks messages with one kernel's key, which proves from which kernel a message is, not that it is honest."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._session = uuid.uuid4().hex
        self._count = 0

    def _sign(self, parts: list[bytes]) -> bytes:
        return hmac.digest(self._key, b"".join(parts), "sha256").hex().encode()

    def request(self, kind: str, content: dict[str, Any]) -> tuple[str, list[bytes]]:
        """Encode a request of `kind`; returns its id and its frames."""
        self._count += 1
        identity = f"{self._session}_{self._count}"
        header = {
            "msg_id": identity,
            "msg_type": kind,
            "username": "nbrl",
            "session": self._session,
            "date": datetime.now(UTC).isoformat(),
            "version": "5.4",
        }
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        return identity, [_DELIMITER, self._sign(parts), *parts]

    def parse(self, frames: list[bytes]) -> KernelMessage | None:
        """Decode the message in `frames`; None if it is malformed or not signed by this kernel's key."""
        try:
            start = frames.index(_DELIMITER)
            signature, *parts = frames[start + 1 : start + 6]
            if len(parts) != 4 or not hmac.compare_digest(signature, self._sign(parts)):
                return None
            header, parent, content = (untrusted.loads(parts[number]) for number in (0, 1, 3))
            if not (isinstance(header, dict) and isinstance(parent, dict) and isinstance(content, dict)):
                return None
            kind, answered = header.get("msg_type", ""), parent.get("msg_id", "")
            if not (isinstance(kind, str) and isinstance(answered, str)):
                return None
            return KernelMessage(kind, answered, content, len(parts[3]))
        except (ValueError, RecursionError):
            return None
