"""A server of OpenEnv environments that is started here, on loopback, and ends with its owner."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nbrl.agent.errors import SessionError
from nbrl.infra.errors import InfraError
from nbrl.infra.process.child import Child, free_port
from nbrl.tasks.environments.openenv.connection import page

PORT = "{port}"
START_S, LOOK_S = 100.0, 0.1


class LocalServer:
    """A program that serves at `address`. It gets none of this process's variables but those that say where programs are."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._folder = tempfile.TemporaryDirectory(prefix="nbrl-openenv-")
        self._child: Child | None = None
        self._starting: asyncio.Future[Child] | None = None
        self.address = ""

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.alive

    async def start(self) -> None:
        """Start the program, and wait until it answers. Raises SessionError if it does not."""
        from mcp.client.stdio import get_default_environment

        port = free_port()
        command = [word.replace(PORT, str(port)) for word in self._command]
        log = Path(self._folder.name, "log")
        try:
            self._starting = asyncio.ensure_future(
                asyncio.to_thread(Child.start, command, env=get_default_environment(), log=log, name="the environment's server")
            )
            child = await asyncio.shield(self._starting)  # cancelled, it would leave a program that `stop` does not know
        except OSError as error:
            raise SessionError(f"its server cannot be started: {error}") from error
        self._child, self.address = child, f"http://127.0.0.1:{port}"
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_S
        while True:
            try:
                await page(self.address, "/health")
                return
            except SessionError as error:
                if not child.alive:
                    raise SessionError(f"its server ended at its start ({child.ending}): {_last(child)}") from error
                if loop.time() > deadline:
                    raise SessionError(f"its server does not answer {START_S:g} s after its start: {_last(child)}") from error
            await asyncio.sleep(LOOK_S)

    async def stop(self) -> None:
        """End the program, with all that it started."""
        try:
            if self._starting is not None:
                with suppress(OSError):  # it could not be started
                    await asyncio.to_thread((await self._starting).stop)
        except InfraError as error:
            raise SessionError(f"its server cannot be ended: {error}") from error
        finally:
            self._folder.cleanup()


def _last(child: Child) -> str:
    return " ".join(child.log_tail(3))[-300:] or "it said nothing"
