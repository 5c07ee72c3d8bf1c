"""Starts, monitors and ends SGLang servers, each a supervised child in the engine's own Python environment."""

import contextlib
import os
import re
import time
from pathlib import Path

import httpx

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.command import AdapterRoom, command, environment, vocabulary_size
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.process.child import Child, free_port, port_in_use
from nbrl.infra.process.health import wait_until_healthy

POLL_S = 0.1
STOP_GRACE_S = 0.5  # SGLang puts nothing in order on SIGTERM: it drains requests
SHARED_MEMORY = Path("/dev/shm")
NOISE = re.compile(r"^\s|nanobind|leaked |Ignore import error|^Traceback|DeprecationWarning|FutureWarning")


class EngineServer:
    """One SGLang server, started by `launch`; `stop` returns when nothing of it is left."""

    def __init__(self, child: Child, port: int, settings: EngineSettings, vocabulary: int) -> None:
        self._child = child
        self.settings = settings
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.vocabulary_size = vocabulary

    @property
    def log(self) -> Path:
        return self._child.log

    def alive(self) -> bool:
        return self._child.alive

    def becomes_healthy(self, timeout_s: float) -> bool:
        """Wait until it serves; False if it ended or `timeout_s` seconds passed first."""
        return wait_until_healthy(self._child, lambda: _serves(self.url), timeout_s, POLL_S)

    def client(self) -> EngineClient:
        return EngineClient(self.url, self.settings.request_timeout_s, self.vocabulary_size)

    def stop(self) -> None:
        self._child.stop(grace_s=STOP_GRACE_S)
        _sweep()

    def last_words(self) -> str:
        """The line of the log that best explains why the engine ended."""
        lines = [line for line in self._child.log_tail(200) if not NOISE.search(line)]
        errors = [line for line in lines if re.search(r"(Error|Exception|\berror)\b.*:", line)]
        return (errors or lines or ["it wrote nothing"])[-1][:500]


def launch(
    settings: EngineSettings,
    model_path: Path,
    log_dir: Path,
    *,
    index: int = 0,
    room: AdapterRoom | None = None,
    version: str = "initial",
) -> EngineServer:
    """Start an engine without waiting for it; pass it to `wait`. `version` names the weights at `model_path`."""
    model_path = Path(model_path).absolute()
    if not settings.python.exists():
        raise EngineError(f"there is no engine environment at {settings.folder}: run `make setup`, or set engine.environment")
    if not any(model_path.glob("*.safetensors")):
        raise EngineError(f"{model_path} holds no model weights (*.safetensors): give a folder in Hugging Face format")
    port = free_port() if settings.port is None else settings.port + index
    if port_in_use(port):
        raise EngineError(
            f"port {port} is taken: end what listens there, set engine.port to another, or leave it out to have one chosen"
        )
    gpu = index * settings.tensor_parallel if settings.resolved_device == "cuda" else None
    _sweep()
    child = Child.start(
        command(settings, model_path, port, settings.base_seed + index, room, version),
        env=environment(settings, model_path, dict(os.environ), gpu),
        log=log_dir / f"engine-{index}.log",
        name=f"engine {index}",
        grace_s=STOP_GRACE_S,
    )
    return EngineServer(child, port, settings, vocabulary_size(model_path))


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


def _serves(url: str) -> bool:
    """Whether one token comes all the way through (the server's own health check takes a second)."""
    body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1}}
    try:
        return httpx.post(f"{url}/generate", json=body, timeout=30.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _sweep() -> None:
    """Remove the shared memory of killed engines."""
    for path in SHARED_MEMORY.glob("sglang_loads_*"):
        with contextlib.suppress(FileNotFoundError):  # another of our runs may sweep too
            if path.stat().st_uid == os.geteuid() and not _mapped(path):
                path.unlink()


def _mapped(path: Path) -> bool:
    """Whether some process of ours still has this shared memory open.

    Sandboxes, which have users of their own, are passed over: they give files of theirs any name, and map them as often as they
    like. Names are bytes, which need not be text.
    """
    users = os.readlink("/proc/self/ns/user")
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            ours = process.stat().st_uid == os.geteuid() and os.readlink(process / "ns/user") == users
            if ours and os.fsencode(path) in (process / "maps").read_bytes():
                return True
    return False
