"""What a machine that is examined says of itself. Several real ones are examined in tests/cluster."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
from nbrl.tasks.services import machines
from nbrl.tasks.services.machines import Examination, code_digest, examine, of_other_kernels, versions


@pytest.fixture(autouse=True)
def on_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")


@pytest.fixture
def wanted(tmp_path: Path) -> Examination:
    settings = StorageSettings(root=str(tmp_path / "storage"))
    Storage(settings).write_bytes("probes/x", b"")
    return Examination(code_digest(), versions(), settings, "probes/x", None, "", sandboxes=None)


def test_a_machine_that_can_do_its_part_says_nothing_and_leaves_nothing_on_the_storage(wanted: Examination) -> None:
    assert examine(wanted) == ("", {})
    assert Storage(wanted.storage).list("probes") == ["probes/x"]


def test_another_version_of_nbrl_is_told(wanted: Examination) -> None:
    assert examine(wanted._replace(code="another")).fault.startswith("has another version of nbrl than the machine that leads")


def test_another_version_of_a_package_is_told(wanted: Examination) -> None:
    older = wanted.versions | {"torch": "0.4"}
    assert f"has torch {wanted.versions['torch']} instead of 0.4" in examine(wanted._replace(versions=older)).fault


@pytest.mark.sandbox
def test_a_machine_with_sandboxes_tells_what_its_kernels_have(wanted: Examination) -> None:
    assert examine(wanted._replace(sandboxes=SandboxSettings())) == ("", interpreter.versions(SandboxSettings()))


@pytest.mark.sandbox
def test_kernels_of_nbrls_own_environment_have_its_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(interpreter, "MADE", tmp_path / "never made")
    assert interpreter.versions(SandboxSettings()) == {"Python": f"3.{sys.version_info[1]}, nbrl's own"}


@pytest.mark.process
@pytest.mark.parametrize("imported", ["importlib.metadata", "importlib_metadata"])  # which changes what the first one finds
def test_leftovers_of_installers_are_no_packages(imported: str, tmp_path: Path) -> None:
    site = tmp_path / "site-packages"
    for folder, said in (
        ("Some_Thing-2.0+cpu", "Name: Some.Thing\nVersion: 2.0+cpu\n"),
        ("~ome_thing-1.0", "Name: Some.Thing\nVersion: 1.0\n"),
        ("nameless-4.0", "Version: 4.0\n"),
        ("empty-3.0", ""),
    ):
        (site / f"{folder}.dist-info").mkdir(parents=True)
        if said:
            (site / f"{folder}.dist-info" / "METADATA").write_text(said)
    script = f"""
import json, pathlib, {imported}
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
folder = pathlib.Path({str(tmp_path)!r})
made = interpreter.Interpreter(folder / "python", folder, (folder / "site-packages",), "cpython-312")
interpreter.for_kernels = lambda _: made
print(json.dumps(interpreter.versions(SandboxSettings())))
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == {"Python": "3.12", "some-thing": "2.0"}


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"Python": "3.12", "numpy": "2"}, ""),
        (
            {"Python": "3.11", "numpy": "1"},
            "has for kernels Python 3.11, and a has Python 3.12: run `make setup`, which takes Python 3.12 ",
        ),
        ({"Python": "3.12", "numpy": "1"}, "has for kernels numpy 1, and a has numpy 2: run `make setup` on both, or"),
        ({"Python": "3.12"}, "has for kernels no numpy, and a has numpy 2: "),
        ({"Python": "3.12", "more": "1", "numpy": "2"}, "has for kernels more 1, and a has no more: "),
    ],
)
def test_machines_whose_kernels_differ_are_told(own: dict[str, str], told: str) -> None:
    said = of_other_kernels(own, "a", {"Python": "3.12", "numpy": "2"})
    assert said.startswith(told)
    assert bool(said) == bool(told)


@pytest.mark.sandbox
def test_a_machine_without_the_environment_of_kernels_is_told(wanted: Examination) -> None:
    said = examine(wanted._replace(sandboxes=SandboxSettings(environment="/nowhere"))).fault
    assert said.startswith("cannot run sandboxes, kernels cannot have the Python environment /nowhere: ")
    assert said.endswith("; or keep them away by rollout.resources")


def test_too_little_shared_memory_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "shared_memory_mb", lambda: 64)
    assert "has 64 MB left in /dev/shm" in examine(wanted).fault


def test_an_address_that_no_interface_has_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "192.0.2.1")
    assert "no network interface with its address in the cluster, 192.0.2.1" in examine(wanted).fault


def test_a_folder_that_is_not_that_of_the_machine_that_leads_is_told(wanted: Examination, tmp_path: Path) -> None:
    elsewhere = wanted._replace(storage=StorageSettings(root=str(tmp_path / "elsewhere")))
    assert "does not see at" in examine(elsewhere).fault


def test_a_storage_out_of_reach_is_told(wanted: Examination, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "PROBE_S", 0.5)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
    }.items():
        monkeypatch.setenv(name, value)
    said = examine(wanted._replace(storage=StorageSettings(root="s3://bucket/x"))).fault
    assert said.startswith("does not reach the storage: ")
    assert said.endswith("see ray.forward for the variables of its credentials")
    assert "a-secret" not in said
