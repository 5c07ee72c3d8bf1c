"""A program of this machine that is spoken to in lines, over two pipes of its own.

It runs under a keeper (see keeper.py): it and all it starts end with this process, whatever ends that. What it writes to its
standard output and error is no part of the talk; the last of it is kept, for errors. A line that is too long ends the program.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

from nbrl.infra.errors import InfraError
from nbrl.infra.process.child import kept

LINE_BYTES = 8 << 20
GRACE_S = 2.0
TAIL_BYTES, CHUNK = 4_000, 1 << 16


class SpokenProcess:
    """A running program; use `start`. `stop` ends it. Belongs to one event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        answers: asyncio.StreamReader,
        incoming: asyncio.ReadTransport,
        requests: asyncio.StreamWriter,
    ) -> None:
        self._process, self._answers, self._incoming, self._requests = process, answers, incoming, requests
        self._tail = bytearray()
        self._listener = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, argv: Sequence[str], env: Mapping[str, str]) -> "SpokenProcess":
        """Start `argv` with exactly `env`; it gets the numbers of two descriptors as last arguments: it reads and writes there.

        Raises InfraError if it cannot be started.
        """
        loop = asyncio.get_running_loop()
        theirs_in, ours_out = os.pipe()
        ours_in, theirs_out = os.pipe()
        command = [*kept(0, GRACE_S), *argv, str(theirs_in), str(theirs_out)]
        pipe = asyncio.subprocess.PIPE
        reader = asyncio.StreamReader(limit=CHUNK)
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(ours_out, "wb", buffering=0)
        )
        writer = asyncio.StreamWriter(transport, protocol, None, loop)
        incoming, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", buffering=0)
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(env),
                pass_fds=(theirs_in, theirs_out),
                start_new_session=True,
            )
        except OSError as error:
            writer.close()
            incoming.close()
            raise InfraError(f"{argv[0]} cannot be started: {error.strerror}") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return cls(process, reader, incoming, writer)

    async def send(self, line: bytes) -> None:
        """Send a line. Raises InfraError if the program has ended."""
        try:
            self._requests.write(line + b"\n")
            await self._requests.drain()
        except OSError as error:
            raise InfraError(f"the program has ended{self.last_words}") from error

    async def line(self) -> bytes:
        """Return the next line. Raises InfraError when there is none any more, or one that is longer than LINE_BYTES."""
        line = bytearray()
        while len(line) <= LINE_BYTES:
            try:
                line += await self._answers.readuntil(b"\n")
                if len(line) <= LINE_BYTES:
                    return bytes(line)
            except asyncio.LimitOverrunError as error:
                line += await self._answers.readexactly(error.consumed)
            except asyncio.IncompleteReadError:
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(self._listener), GRACE_S)
                raise InfraError(f"the program has ended{self.last_words}") from None
        raise InfraError(f"the program wrote a line of more than {LINE_BYTES} bytes")

    @property
    def last_words(self) -> str:
        """Return the end of what it wrote elsewhere, for an error; empty if it wrote nothing."""
        lines = [line.strip() for line in self._tail.decode(errors="replace").splitlines() if line.strip()]
        return f"; it wrote: {' / '.join(lines[-3:])}" if lines else ""

    @property
    def pid(self) -> int:
        """Return the keeper's process id; the program and all it starts are its descendants."""
        return self._process.pid

    async def stop(self) -> None:
        """End it and everything it started; return when nothing is left."""
        if self._process.stdin is not None:
            self._process.stdin.close()  # by which the keeper ends all
        await self._process.wait()
        self._requests.close()
        self._incoming.close()
        await self._listener

    async def _listen(self) -> None:
        if self._process.stdout is None:
            return
        while chunk := await self._process.stdout.read(CHUNK):
            self._tail += chunk
            del self._tail[:-TAIL_BYTES]
