"""What a machine that is examined says of itself. Several real ones are examined in tests/cluster."""

from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
from nbrl.tasks.services import machines
from nbrl.tasks.services.machines import Examination, code_digest, examine, versions


@pytest.fixture(autouse=True)
def on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")


@pytest.fixture
def wanted(tmp_path: Path) -> Examination:
    settings = StorageSettings(root=str(tmp_path / "storage"))
    Storage(settings).write_bytes("probes/x", b"")
    return Examination(code_digest(), versions(), settings, "probes/x", None, "", sandboxes=None, kernels={})


def test_a_machine_that_can_do_its_part_says_nothing_and_leaves_nothing_on_the_storage(wanted: Examination) -> None:
    assert examine(wanted) == ""
    assert Storage(wanted.storage).list("probes") == ["probes/x"]


def test_another_version_of_nbrl_is_told(wanted: Examination) -> None:
    assert examine(wanted._replace(code="another")).startswith("has another version of nbrl than the machine that leads")


def test_another_version_of_a_package_is_told(wanted: Examination) -> None:
    older = wanted.versions | {"torch": "0.4"}
    assert f"has torch {wanted.versions['torch']} instead of 0.4" in examine(wanted._replace(versions=older))


@pytest.mark.sandbox
def test_another_python_or_package_of_kernels_is_told_where_there_are_sandboxes(wanted: Examination) -> None:
    own = interpreter.versions(interpreter.for_kernels(SandboxSettings()))
    led = wanted._replace(sandboxes=SandboxSettings(), kernels=own | {"nowhere": "1"})
    assert examine(led) == ""
    for name in ("Python", "numpy"):
        fault = f"has {name} {own[name]} for kernels instead of 0.4, which the machine that leads the run has; run `make setup`"
        assert examine(led._replace(kernels=own | {name: "0.4"})).startswith(fault)
        assert examine(led._replace(kernels=own | {name: "0.4"}, sandboxes=None)) == ""


@pytest.mark.sandbox
def test_a_machine_without_the_environment_of_kernels_is_told(wanted: Examination) -> None:
    said = examine(wanted._replace(sandboxes=SandboxSettings(environment="/nowhere")))
    assert said.startswith("cannot run sandboxes: kernels cannot have the Python environment /nowhere: ")
    assert said.endswith("; or keep sandboxes away by rollout.resources")


def test_too_little_shared_memory_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "shared_memory_mb", lambda: 64)
    assert "has 64 MB left in /dev/shm" in examine(wanted)


def test_an_address_that_no_interface_has_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "192.0.2.1")
    assert "no network interface with its address in the cluster, 192.0.2.1" in examine(wanted)


def test_a_folder_that_is_not_that_of_the_machine_that_leads_is_told(wanted: Examination, tmp_path: Path) -> None:
    elsewhere = wanted._replace(storage=StorageSettings(root=str(tmp_path / "elsewhere")))
    assert "does not see at" in examine(elsewhere)


def test_a_storage_out_of_reach_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "PROBE_S", 0.5)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    said = examine(wanted._replace(storage=StorageSettings(root="s3://bucket/x")))
    assert said.startswith("does not reach the storage: ")
    assert said.endswith("see ray.forward for the variables of its credentials")
    assert "a-secret" not in said
