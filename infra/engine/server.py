"""Starts, monitors and ends SGLang servers, each a supervised child in the engine's own Python environment."""

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import (
    LOOPBACK,
    AdapterRoom,
    Door,
    Member,
    command,
    environment,
    last_gpus,
    vocabulary_size,
)
from nbrl.infra.engine.parts import Parts, sweep, temporary
from nbrl.infra.engine.settings import EngineSettings, headers, write_keys
from nbrl.infra.errors import EngineError
from nbrl.infra.process.child import Child, free_port, port_in_use
from nbrl.infra.process.health import wait_until_healthy
from nbrl.infra.process.identity import here
from nbrl.infra.process.probe import answers

POLL_S = 0.1
PORT_S = 5.0
NO_ADAPTERS = MappingProxyType[str, Path]({})
STOP_GRACE_S = 0.5  # SGLang puts nothing in order on SIGTERM: it drains requests
ERROR = re.compile(r"(Error|Exception|\berror)\b.*:")
NOISE = re.compile(r"^\s|nanobind|leaked |Ignore import error|^Traceback|DeprecationWarning|FutureWarning")


@dataclass(frozen=True)
class _Place:
    """The values that an engine keeps when it is started again."""

    settings: EngineSettings
    logs: Path
    index: int
    port: int
    room: AdapterRoom | None
    door: Door
    gpus: str | None


class EngineServer:
    """One SGLang server, started by `launch`; `stop` returns when nothing of it is left."""

    def __init__(self, child: Child, place: _Place, folder: Path, vocabulary: int, first: bool = True) -> None:
        """Make a server. `folder` has its temporary files. On several machines only the `first` takes requests."""
        self._child, self._place, self._folder, self._first = child, place, folder, first
        self._parts: Parts | None = None  # from when it serves
        self.settings = place.settings
        self.port = place.port
        self.url = f"http://{here(place.door.host)}:{place.port}"
        self.key = place.door.key
        self.vocabulary_size = vocabulary

    @property
    def name(self) -> str:
        return self._child.name

    @property
    def log(self) -> Path:
        return self._child.log

    def alive(self) -> bool:
        return self._child.alive and (self._parts is None or self._parts.gone() is None)

    def becomes_healthy(self, timeout_s: float) -> bool:
        """Wait until it serves; False if it ended or `timeout_s` seconds passed first."""
        serves = _serves if self._first else _ready
        healthy = wait_until_healthy(self._child, lambda: serves(self.url, self.key), timeout_s, POLL_S)
        if healthy:
            self._parts = Parts(self._child.pid)
        return healthy

    def client(self) -> EngineClient:
        return EngineClient(self.url, self.settings.request_timeout_s, self.vocabulary_size, self.key)

    def stop(self) -> None:
        self._child.stop(grace_s=STOP_GRACE_S)
        deadline = time.monotonic() + PORT_S
        # Threads of a killed process may end after it.
        while port_in_use(self.port, probed_host(self._place.door)) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        shutil.rmtree(self._folder, ignore_errors=True)
        sweep()

    def last_words(self) -> str:
        """Return the line of the log that best explains why the engine ended."""
        lines = [line for line in self._child.log_tail(200) if not NOISE.search(line)]
        errors = [line for line in lines if ERROR.search(line)]
        return self._hidden((errors or lines or ["it wrote nothing"])[-1])[:500]

    def ending(self) -> str:
        """Return how the engine ended, with the error if its log has one: a killed engine's last line says nothing."""
        lines = self._child.log_tail(200)
        if self._child.alive and self._parts is not None and (part := self._parts.gone()) is not None:
            return self._parts.ending(part, lines)
        raised = max((number for number, line in enumerate(lines) if "Traceback" in line), default=len(lines))
        errors = [line for line in lines[raised:] if ERROR.search(line) and not NOISE.search(line)]
        return ": ".join([self._child.ending, *(self._hidden(line)[:500] for line in errors[-1:])])

    def _hidden(self, line: str) -> str:
        """Return a line of the log without the key."""
        return line.replace(self.key, "[key]")

    def again(
        self, model_path: Path, version: str, adapters: Mapping[str, Path] = NO_ADAPTERS, member: Member | None = None
    ) -> "EngineServer":
        """Start the engine again, after its end, in the same place and with these weights; it is to be waited for.

        It serves the `adapters`, by name, beside the model. Raises EngineError if the port has been taken meanwhile.
        """
        return _launch(self._place, model_path, version, adapters, member)


def launch(
    settings: EngineSettings,
    model_path: Path,
    log_dir: Path,
    *,
    index: int = 0,
    room: AdapterRoom | None = None,
    version: str = "initial",
    door: Door | None = None,
    gpus: str | None = None,
    adapters: Mapping[str, Path] = NO_ADAPTERS,
    port: int | None = None,
    member: Member | None = None,
) -> EngineServer:
    """Start an engine without waiting for it; pass it to `wait`. `version` names the weights at `model_path`.

    It serves the `adapters`, by name, beside the model. `gpus` are the numbers of its own ones; where they are not given, it
    takes its share of this machine's. `port` is preferred, where the settings name none. `member` says which machine this is of
    an engine that has several; each of them starts its own server.
    """
    door = door or Door()
    if settings.machines > 1 and member is None:
        raise EngineError(
            f"engine.machines is {settings.machines}, and this is one machine: set it to 1 and engine.tensor_parallel to its GPUs"
        )
    if not settings.python.exists():
        raise EngineError(f"there is no engine environment at {settings.folder}: run `make setup`, or set engine.environment")
    if settings.port is not None:
        port = settings.port + index
    elif port is None or port_in_use(port, probed_host(door)):
        port = free_port(probed_host(door))
    if gpus is None and settings.resolved_device == "cuda":
        gpus = last_gpus(index, settings.gpus_per_machine, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return _launch(_Place(settings, log_dir, index, port, room, door, gpus), model_path, version, adapters, member)


def _launch(place: _Place, model_path: Path, version: str, adapters: Mapping[str, Path], member: Member | None) -> EngineServer:
    settings, index, model_path = place.settings, place.index, Path(model_path).absolute()
    if not any(model_path.glob("*.safetensors")):
        raise EngineError(f"{model_path} holds no model weights (*.safetensors): give a folder in Hugging Face format")
    if port_in_use(place.port, probed_host(place.door)):
        raise EngineError(
            f"port {place.port} is taken: end what listens there, set engine.port to another, or leave it out to have one chosen"
        )
    sweep()
    folder, door = temporary(), place.door
    keys = folder / "keys.yaml"
    write_keys(keys, door.key, door.administrator or door.key)
    seed, number = index, member.number if member else 0
    variables = os.environ | {"TMPDIR": str(folder)} | ({"SGLANG_HOST_IP": door.host} if member and not number else {})
    child = Child.start(
        command(settings, model_path, place.port, seed, place.room, version, adapters, door, keys, member),
        env=environment(settings, model_path, variables, place.gpus),
        log=place.logs / (f"engine-{index}-machine-{number}.log" if number else f"engine-{index}.log"),
        name=f"engine {index}",
        grace_s=STOP_GRACE_S,
    )
    return EngineServer(child, place, folder, vocabulary_size(model_path), first=not number)


def probed_host(door: Door) -> str:
    """Return the host at which to check whether a port is taken."""
    return door.host if door.host.count(".") == 3 else LOOPBACK


def wait(servers: list[EngineServer]) -> list[EngineServer]:
    """Wait until every engine serves; if one does not, end them all and raise EngineError with the reason."""
    started = time.monotonic()
    try:
        for server in servers:
            _wait(server, server.settings.start_timeout_s - (time.monotonic() - started))
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


def _wait(server: EngineServer, timeout_s: float) -> None:
    if server.becomes_healthy(timeout_s):
        return
    if not server.alive():
        raise EngineError(f"the engine ended while starting: {server.last_words()} (log: {server.log})")
    raise EngineError(
        f"the engine did not come up within {server.settings.start_timeout_s:g} s, its last line is: "
        f"{server.last_words()} (log: {server.log}; raise engine.start_timeout_s on a slow machine)"
    )


def _serves(url: str, key: str) -> bool:
    """Return whether the server generates one token (its own health check takes a second)."""
    body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}
    return answers(f"{url}/generate", 30.0, headers(key), body)


def _ready(url: str, key: str) -> bool:
    """Return whether a server that takes no requests is ready for those of the engine."""
    return answers(f"{url}/health", 5.0, headers(key))
