"""An engine on the machine of this process, for a fleet that may be elsewhere."""

import threading
from collections.abc import Mapping
from pathlib import Path

from nbrl.infra.engine.command import AdapterRoom, Door, Member
from nbrl.infra.engine.server import EngineServer, launch, probed_host, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.node_cache import CopyLease, NodeCache, NodeSettings, PlacedFolder
from nbrl.infra.process.child import free_port
from nbrl.infra.process.identity import here

KEPT = 4  # leases of folders: what is served, and what is published or compared, and one more for each further adapter


class EngineHost:
    """Starts the engine number `index`, and starts it again in the same place. As an actor of Ray it runs in several threads."""

    def __init__(
        self,
        settings: EngineSettings,
        index: int,
        logs: Path,
        nodes: NodeSettings,
        door: Door,
        room: AdapterRoom | None = None,
        gpus: str | None = None,
        port: int | None = None,
    ) -> None:
        self._settings, self._index, self._logs, self._room = settings, index, logs, room
        self._door, self._gpus, self._port, self._cache = door, gpus, port, NodeCache(nodes)
        self._server: EngineServer | None = None
        self._changing = threading.Lock()  # not held while an engine is waited for, so that it can be stopped
        self._leases: dict[tuple[str, str], CopyLease] = {}

    def meeting(self) -> str:
        """Return a free address of this machine, for the members of an engine to meet."""
        return f"{here(self._door.host)}:{free_port(probed_host(self._door))}"

    def start(
        self,
        model: PlacedFolder,
        part: str,
        version: str,
        adapters: Mapping[str, PlacedFolder],
        inside: str,
        member: Member | None = None,
    ) -> tuple[str, int]:
        """Start the engine with the model in the subfolder `part` of a folder and the adapters, by name, in `inside` of others;
        returns its address and the size of its vocabulary when it serves. Of an engine on several machines, all members are
        started at once.

        Raises EngineError if it does not come up, or lives already, and StorageError if a folder cannot be had.
        """
        path, beside = self.path(model, part), {name: self.path(adapter, inside) for name, adapter in adapters.items()}
        with self._changing:
            if self._server is None:
                self._server = launch(
                    self._settings,
                    path,
                    self._logs,
                    index=self._index,
                    room=self._room,
                    version=version,
                    door=self._door,
                    gpus=self._gpus,
                    adapters=beside,
                    port=self._port,
                    member=member,
                )
            else:
                self._server.stop()
                self._server = self._server.again(path, version, beside, member)
            server = self._server
        wait([server])
        return server.url, server.vocabulary_size

    def path(self, folder: PlacedFolder, part: str) -> Path:
        """Return the subfolder `part` of a folder on this machine; the last few that were asked for stay."""
        asked = (str(folder), part)
        lease = self._leases.pop(asked, None) or folder.lease(self._cache, part)
        self._leases[asked] = lease
        while len(self._leases) > KEPT + (self._room.count - 1 if self._room else 0):
            self._leases.pop(next(iter(self._leases))).release()
        return lease.path / part if part else lease.path

    def ending(self) -> str:
        """Return how the engine ended; empty while it lives."""
        if self._server is None:
            return "it was not started"
        return "" if self._server.alive() else self._server.ending() or "it ended"

    def log(self) -> str:
        return str(self._server.log) if self._server else str(self._logs)

    def stop(self) -> None:
        """End the engine, also one that is being waited for, whose `start` then raises."""
        with self._changing:
            if self._server is not None:
                self._server.stop()
