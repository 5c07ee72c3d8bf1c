"""Engines that do not come up: one clear error, quickly, and nothing left. A stand-in for the environment's Python misbehaves."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbrl.infra.engine.server import launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.process.child import free_port
from nbrl.infra.process.identity import short_identity

from .test_processes import until

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def own_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that never run have none; that of others is left alone."""
    monkeypatch.setattr("nbrl.infra.engine.parts.SHARED_MEMORY", tmp_path / "none")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 99}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def stand_in(tmp_path: Path, script: str, **settings: object) -> EngineSettings:
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return EngineSettings.model_validate({"environment": str(tmp_path / "environment"), "device": "cpu", **settings})


def test_no_environment(tmp_path: Path, model: Path) -> None:
    with pytest.raises(EngineError, match=r"no engine environment at /nowhere: run `make setup`"):
        launch(EngineSettings(environment="/nowhere", device="cpu"), model, tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="holds no model weights"):
        launch(stand_in(tmp_path, ""), tmp_path / "none", tmp_path)


def test_port_taken(tmp_path: Path, model: Path) -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(EngineError, match=f"port {port} is taken"):
            launch(stand_in(tmp_path, "", port=port), model, tmp_path)


def test_early_death_is_reported_at_once_with_its_reason(tmp_path: Path, model: Path) -> None:
    script = """
    echo 'Traceback (most recent call last):' >&2
    echo '  File "x.py", line 1' >&2
    echo 'ValueError: no room for the cache' >&2
    echo 'kill_process_tree called' >&2
    exit 1"""
    started = time.monotonic()
    with pytest.raises(EngineError, match=r"ended while starting: ValueError: no room for the cache \(log: .*engine-0.log\)"):
        wait([launch(stand_in(tmp_path, script), model, tmp_path / "logs")])
    assert time.monotonic() - started < 10


def test_time_out(tmp_path: Path, model: Path, processes: Callable[[str], list[int]]) -> None:
    settings = stand_in(tmp_path, "echo loading; exec sleep 1000", start_timeout_s=0.5)
    with pytest.raises(EngineError, match=r"did not come up within 0.5 s, its last line is: loading"):
        wait([launch(settings, model, tmp_path / "logs")])
    assert processes(str(model)) == []


def test_one_of_two_fails_and_both_end(tmp_path: Path, model: Path, processes: Callable[[str], list[int]]) -> None:
    settings = stand_in(tmp_path, 'case "$*" in *"--random-seed 1"*) exit 1;; *) exec sleep 1000;; esac', count=2)
    engines = [launch(settings, model, tmp_path / "logs", index=index) for index in range(2)]
    assert until(lambda: not engines[1].alive())
    with pytest.raises(EngineError, match="ended while starting"):
        wait([engines[1], engines[0]])
    assert processes(str(model)) == []


MAPPING = """
import mmap, os, sys
descriptor = os.open(os.fsencode(sys.argv[1]), os.O_RDWR | os.O_CREAT, 0o600)
os.truncate(descriptor, 4096)
mapped = mmap.mmap(descriptor, 4096)
os.close(descriptor)
print("mapped", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def mapping(path: bytes) -> Iterator[None]:
    """A process of ours that has the file, which it makes, in its memory."""
    with subprocess.Popen([sys.executable, "-c", MAPPING, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"mapped\n"
        yield
        process.stdin.close()


def test_what_killed_engines_left_in_memory_goes_and_that_of_living_ones_stays(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbrl.infra.engine.parts.SHARED_MEMORY", tmp_path)
    left, used = tmp_path / "sglang_loads_left", tmp_path / "sglang_loads_used"
    left.touch()
    # A file's name need not be text, and anybody's may be mapped.
    with mapping(os.fsencode(tmp_path / "other-") + b"\xff\xfe"), mapping(os.fsencode(used)):
        launch(stand_in(tmp_path, "exec sleep 1000"), model, tmp_path / "logs").stop()
        assert (left.exists(), used.exists()) == (False, True)
    launch(stand_in(tmp_path, "exec sleep 1000"), model, tmp_path / "logs").stop()
    assert not used.exists()


def test_the_temporary_files_of_an_engine_end_with_it(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.infra.engine.parts.TEMPORARY", tmp_path)
    server = launch(stand_in(tmp_path, 'touch "$TMPDIR/socket"; exec sleep 1000'), model, tmp_path / "logs")
    assert until(lambda: bool(list(tmp_path.glob("nbrl-engine-*/socket"))))
    (folder,) = tmp_path.glob(f"nbrl-engine-{short_identity()}-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    server.stop()
    assert not folder.exists()


def test_temporary_files_of_a_killed_owner_go_and_those_of_a_living_one_or_of_another_container_stay(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbrl.infra.engine.parts.TEMPORARY", tmp_path)
    with subprocess.Popen(["sleep", "1000"]) as ended:
        ended.kill()
    ours = short_identity().partition(".")[2]
    owners = [f"{ended.pid}.{ours}", f"{os.getppid()}.{ours}", f"{ended.pid}.f{ours}", str(ended.pid)]
    folders = [tmp_path / f"nbrl-engine-{owner}-1" for owner in owners]
    for folder in folders:
        folder.mkdir()
    launch(stand_in(tmp_path, "exec sleep 1000"), model, tmp_path / "logs").stop()
    assert [folder.exists() for folder in folders] == [False, True, True, True]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_shared_memory_of_other_users_is_not_ours_to_remove(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.infra.engine.parts.SHARED_MEMORY", tmp_path)
    theirs = tmp_path / "sglang_loads_theirs"
    theirs.touch()
    os.chown(theirs, 1000, 1000)
    launch(stand_in(tmp_path, "exec sleep 1000"), model, tmp_path / "logs").stop()
    assert theirs.exists()


OWNER = """
import sys, time
from pathlib import Path
from nbrl.infra.engine.server import launch
from nbrl.infra.engine.settings import EngineSettings
launch(EngineSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
print("up", flush=True)
time.sleep(1000)
"""


def test_engine_ends_with_its_killed_owner(tmp_path: Path, model: Path, processes: Callable[[str], list[int]]) -> None:
    settings = stand_in(tmp_path, "sleep 1000")
    arguments = [settings.model_dump_json(), str(model), str(tmp_path)]
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdout=subprocess.PIPE, env=dict(os.environ))
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"up\n"
    mark = f"--model-path\0{model}"
    assert until(lambda: len(processes(mark)) == 2)  # keeper and command
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert until(lambda: processes(mark) == [])
