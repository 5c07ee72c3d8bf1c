"""Ray for this process: a cluster of our own on this machine, or one that exists.

Our own cluster runs under a keeper and is joined by address, so that no raylet, agent or worker outlives us, kill -9 included.
Ray's servers listen on every interface, whatever address they are given, and run the code of every process that may connect: ours
ask for a token that is drawn anew for each cluster and lies in a file that only its owner can read. A cluster that is joined
keeps its own way of authentication, which Ray reads from RAY_AUTH_MODE, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH and
~/.ray/auth_token.
"""

import asyncio
import atexit
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from contextlib import AsyncExitStack
from pathlib import Path

from pydantic import Field

from nbrl.infra import own_code
from nbrl.infra.closed import ClosedModel, acts_if
from nbrl.infra.errors import ServerError
from nbrl.infra.process.child import Child, free_port, in_words
from nbrl.infra.process.health import started
from nbrl.infra.process.identity import has_ended, short_identity
from nbrl.infra.ray_worker import setup

TEMPORARY = Path("/tmp")  # Unix socket paths are limited to 107 bytes: a folder below the home would be too deep
PREFIX = "nbrl-ray-"
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DATA_USE_DATASOURCE_V2": "0",  # version 2 starts 32 actors to read the footer of one Parquet file
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "1",  # an actor call to each rank, however idle it is
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a thread left behind must not start a cluster of its own after ours was shut down
}
OWN = {  # in a cluster of our own, whose state no user asks for
    "RAY_task_events_report_interval_ms": "0",  # no record of each task, of which the GCS would keep 100 000
    "RAY_maximum_gcs_destroyed_actor_cached_count": "100",
}
HEAD = Path(__file__).with_name("own_ray") / "head.py"
HOOK = {"RAY_START_HOOK": "nbrl.infra.own_ray.head.leave_out"}
DEATH = re.compile(r"END (\w+)\.out tail \(exit code\(s\)=(-?\d+)")
STOP_GRACE_S = 0.3  # raylet and actors end in half of it; the other servers wait longer, with nothing to put in order
CONNECT_S = 5.0  # Ray itself tries for minutes
OBJECT_STORE_BYTES = 200 << 20  # rows of rollouts are small: what they made is in files


class RaySettings(ClosedModel):
    """`address` joins an existing cluster; the other settings configure nbrl's own."""

    address: str | None = Field(
        None, description="host:port of a cluster to join; when not set, one is started on this machine and ends with the run"
    )
    forward: tuple[str, ...] = Field(
        (),
        description="names of environment variables of this process that its workers in a joined cluster get too, such as "
        "AWS_SECRET_ACCESS_KEY; their values are neither printed nor written to the storage, and no sandbox gets them. Workers "
        "of nbrl's own cluster get all variables",
        json_schema_extra=acts_if("address"),
    )
    num_cpus: int | None = Field(
        default=None,
        ge=1,
        description="CPUs that nbrl's own cluster offers; those of this machine when not set",
        json_schema_extra=acts_if("address", None),
    )
    num_gpus: int | None = Field(
        default=None,
        ge=0,
        description="GPUs that nbrl's own cluster offers; those of this machine when not set",
        json_schema_extra=acts_if("address", None),
    )
    start_timeout_s: float = Field(
        default=120,
        gt=0,
        description="maximum seconds until nbrl's own cluster answers after its start",
        json_schema_extra=acts_if("address", None),
    )


_child: Child | None = None
_port = 0
_folder = Path()  # of our own cluster


def launch(settings: RaySettings, log_dir: Path) -> None:
    """Begin to start our own cluster, unless one is to be joined or this process has one; `start` waits until it answers."""
    global _child, _folder
    if settings.address is not None or _child is not None:
        return
    os.environ.update(ENVIRONMENT | OWN)
    _remove_leftovers()
    _folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{short_identity()}-", dir=TEMPORARY))
    _draw_token(_folder)
    _child = _start(settings, log_dir)
    atexit.register(stop)


def _start(settings: RaySettings, log_dir: Path) -> Child:
    global _port
    _port = free_port()
    shutil.rmtree(_folder / "ray", ignore_errors=True)  # of a start that Ray gave up
    line, log = _command(settings, _port, _folder), log_dir / "ray.log"
    return Child.start(line, env=os.environ | HOOK, log=log, name="Ray", grace_s=STOP_GRACE_S)


def start(settings: RaySettings, log_dir: Path) -> None:
    """Start or join the cluster and connect this process to it; does nothing if it is connected."""
    os.environ.update(ENVIRONMENT)  # before Ray is imported: it reads some of them then
    global _child
    launch(settings, log_dir)
    address = settings.address
    import ray  # takes seconds, in which the cluster comes up

    if ray.is_initialized():
        return
    if address is None:
        assert _child is not None
        _read_token()
        try:
            _child = started(
                _child,
                lambda: _start(settings, log_dir),
                lambda child: any("Ray runtime started" in line for line in child.log_tail(50)),
                settings.start_timeout_s,
                "Ray",
                "ray.start_timeout_s",
                words=_reason,
            )
        except BaseException:
            stop()
            raise
        address = f"127.0.0.1:{_port}"
    else:
        check_address(address)
    hook = None if settings.address is None else {"worker_process_setup_hook": setup(_forwarded(settings))}
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1" if settings.address is None else None,
            runtime_env=hook,
        )
    except Exception as error:
        stop()
        raise ServerError(f"cannot join the Ray cluster at {address}: {error}") from error


def _forwarded(settings: RaySettings) -> dict[str, str]:
    """Return the variables of workers in a joined cluster. Raises ServerError if one that is named is not set here."""
    if missing := [name for name in settings.forward if name not in os.environ]:
        raise ServerError(f"ray.forward names {', '.join(missing)}, which is not set here; set it, or leave it out")
    own = [own_code.VARIABLE] if own_code.VARIABLE in os.environ else []  # for machines that see the same folders
    return ENVIRONMENT | {name: os.environ[name] for name in (*settings.forward, *own)}


async def use(stack: AsyncExitStack, settings: RaySettings, logs: Path) -> None:
    """Start or join a cluster; it is stopped or left with `stack`. Raises ServerError."""
    stack.callback(stop)
    await asyncio.to_thread(start, settings, logs)
    give_back_sigterm()


def give_back_sigterm() -> None:
    """Restore the handler of SIGTERM after `start`: Ray turns the signal into a crash. Only the main thread can set one."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
        signal.siginterrupt(signal.SIGTERM, False)


def check() -> None:
    """Raises ServerError once our own cluster has ended, as it does a second after one of its servers: calls would wait."""
    if _child is not None and not _child.alive:
        deaths = [
            f"its {found[1]} ended: {in_words(int(found[2]))}" for found in map(DEATH.search, _child.log_tail(1000)) if found
        ]
        raise ServerError(f"Ray ended ({', '.join(deaths) or _child.ending}; its log is {_child.log})")


def offered(resource: str) -> float:
    """Return what all machines together have of a resource."""
    import ray

    return float(ray.cluster_resources().get(resource, 0))


def machines() -> int:
    """Return how many of them live."""
    import ray

    return sum(bool(node["Alive"]) for node in ray.nodes())


def stop() -> None:
    """Disconnect, and end the cluster if this process started it; does nothing if there is none."""
    global _child
    if "ray" in sys.modules:
        sys.modules["ray"].shutdown()
    if _child is not None:
        _child.stop(grace_s=STOP_GRACE_S)
        _child = None
        atexit.unregister(stop)
        shutil.rmtree(_folder, ignore_errors=True)


def _draw_token(folder: Path) -> None:
    """Write a new token into a `folder` of this user alone, named in the environment of this process and its children."""
    file = folder / "token"
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as token:
        token.write(secrets.token_hex(32))
    os.environ.pop("RAY_AUTH_TOKEN", None)  # that of another cluster, which Ray would prefer
    os.environ.update({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)})


def _read_token() -> None:
    """Let Ray read mode and token again: it was perhaps imported before they were drawn."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # compiled

    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _command(settings: RaySettings, port: int, folder: Path) -> list[str]:
    line = [sys.executable, str(HEAD), "start", "--head", "--block", "--disable-usage-stats", "--no-monitor"]
    line += ["--include-dashboard=false", "--include-log-monitor=false", "--node-ip-address=127.0.0.1", f"--port={port}"]
    line += [f"--temp-dir={folder / 'ray'}", f"--object-store-memory={OBJECT_STORE_BYTES}"]
    if settings.num_cpus is not None:
        line.append(f"--num-cpus={settings.num_cpus}")
    if settings.num_gpus is not None:
        line.append(f"--num-gpus={settings.num_gpus}")
    return line


def _reason(child: Child) -> str:
    """Return the line of Ray's log that says why it gave up, or else the last one."""
    lines = child.log_tail(50)
    return " ".join(([line for line in lines if re.search(r"error|fail|timed out", line, re.IGNORECASE)] or lines)[-1:])


def check_address(address: str) -> None:
    """Raises ServerError when nothing listens at a cluster's address; `auto`, this machine's own, is not looked for."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ServerError(f"ray.address {address!r} is no address of a cluster: give host:port, ray://host:port or auto")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ServerError(
            f"no Ray cluster answers at {address}: start one there, or leave out ray.address to have one started here"
        ) from error


def _remove_leftovers() -> None:
    """Remove folders of clusters whose owner was killed."""
    for folder in TEMPORARY.glob(f"{PREFIX}*"):
        if has_ended(folder.name.removeprefix(PREFIX).partition("-")[0]):
            shutil.rmtree(folder, ignore_errors=True)
