"""Documents to text. Text is decoded here; what needs a parser goes through convert.py, a process of its own."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from nbrl.agent.text import cut_end
from nbrl.agent.tools.files.charsets import UNNAMED, decoded, markup

CONVERT = Path(__file__).with_name("convert.py")
UNCONFINED = (sys.executable, "-I", str(CONVERT))
"""The command line of the parser without a sandbox; nbrl.tasks.rollout.notebooks gives one with."""
PARSED = ("html", "pdf", "docx", "xlsx")
PLAIN = ("txt", "md", "csv", "tsv", "json", "jsonl", "xml", "yaml", "yml", "log", "py", "tex")
_AT_ONCE = 4
_SUFFIXES = {"htm": "html", "xhtml": "html"}


class DocumentError(Exception):
    """A document cannot be turned into text; the message is for the cell."""


def kind_of(path: str) -> str:
    """Return the kind of a file from the suffix of its name. Raises DocumentError if it is not supported."""
    suffix = PurePosixPath(path).suffix.lower().lstrip(".")
    kind = _SUFFIXES.get(suffix, suffix)
    if kind not in (*PARSED, *PLAIN):
        supported = ", ".join((*PARSED, *PLAIN))
        raise DocumentError(f"{path[:200]!r} is of no kind that can be read; the end of the name says it: {supported}")
    return kind


class Documents:
    """Converts a few documents at once, each to at most `max_chars` characters within `timeout_s`, by the program `parser`."""

    def __init__(self, max_chars: int, timeout_s: float, parser: Sequence[str] = UNCONFINED) -> None:
        self._max_chars, self._timeout_s, self._parser = max_chars, timeout_s, parser
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def to_text(self, kind: str, data: bytes, charset: str = UNNAMED) -> str:
        """Convert a document. Raises DocumentError. A longer text is cut, with a note at its end.

        `charset` is what a header says of a text or a page; it is found out where nothing names it.
        """
        if kind in PARSED:
            page = kind == "html"
            text = await self._parse(kind, (await asyncio.to_thread(markup, data, charset)).encode() if page else data)
        else:
            text = await asyncio.to_thread(decoded, data, charset)
        return cut_end(text, self._max_chars)

    async def _parse(self, kind: str, data: bytes) -> str:
        async with self._places:
            program = [*self._parser, kind, str(self._max_chars + 1)]
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(*program, stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/")
            try:
                async with asyncio.timeout(self._timeout_s):
                    text, complaint = await _converse(process, data, 4 * self._max_chars + 100)
                    await process.wait()
            except TimeoutError:
                raise DocumentError(f"the {kind} took longer than {self._timeout_s:g} s to read") from None
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            reason = complaint.decode("utf-8", "replace").strip()[-200:] or "the reader ended, it was too much for it"
            raise DocumentError(f"it is no {kind} that can be read: {reason}")
        result = text.decode("utf-8", "replace")
        return result if len(result) > self._max_chars else result.strip()  # of one that is cut the note must stay


async def _converse(process: asyncio.subprocess.Process, data: bytes, limit: int) -> tuple[bytes, bytes]:
    """Feed `data` and read both outputs, at most `limit` bytes of each; what comes after is left in the pipe."""
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise RuntimeError("the reader was started without pipes")

    async def feed(stdin: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            stdin.write(data)
            await stdin.drain()
        stdin.close()

    async def read(stream: asyncio.StreamReader) -> bytes:
        data = bytearray()
        while len(data) < limit and (chunk := await stream.read(1 << 16)):
            data += chunk
        return bytes(data)

    _, text, complaint = await asyncio.gather(feed(process.stdin), read(process.stdout), read(process.stderr))
    return text, complaint
