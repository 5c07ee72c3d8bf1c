import os
import socket
import time
from pathlib import Path

import pytest

from nbrl.infra.doctor import Check, checks
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import Home
from nbrl.infra.process.child import free_port
from nbrl.infra.storage import StorageSettings

pytestmark = pytest.mark.process


def examine(home: Home, storage: str, **engine: object) -> dict[str, Check]:
    return {check.name: check for check in checks(home, EngineSettings.model_validate(engine), StorageSettings(root=storage))}


def test_all_is_well(home: Home, tmp_path: Path) -> None:
    started = time.monotonic()
    found = examine(home, str(tmp_path / "storage"))
    assert [check for check in found.values() if not check.ok] == []
    assert set(found) == {"engine", "gpu", "ray", "storage", "prefect", "mlflow", "memory", "disk"}
    assert found["engine"].message.startswith("SGLang 0.5")
    assert time.monotonic() - started < 10
    assert not any(path.is_file() for path in home.root.rglob("*"))  # it leaves nothing behind


def test_what_is_wrong_is_named_with_its_cure(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (home.mlflow / "mlflow.db").write_text("no database" * 100)
    found = examine(home, "/proc/nbrl", environment="/nowhere", device="cuda")
    assert {check.name for check in found.values() if not check.ok} == {"engine", "gpu", "storage", "mlflow"}
    assert "make setup" in found["engine"].fix
    assert "engine.count" in found["gpu"].fix
    assert "storage.root" in found["storage"].fix
    assert all(check.fix for check in found.values() if not check.ok)


def test_taken_port(home: Home, tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        assert "is taken" in examine(home, str(tmp_path), port=port)["engine"].message


def test_storage_that_does_not_answer_takes_nobody_with_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.infra.doctor.LIMIT_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        os.environ |= {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        found = examine(home, "s3://bucket/x")
        assert not found["storage"].ok
        assert "no answer within" in found["storage"].message
        assert found["disk"].ok
