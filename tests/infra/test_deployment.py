"""The files of infra/deployment fit each other, the settings and the files that they name; set-up takes the device it is told."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from nbrl.infra.placement import offers
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load

HERE = Path(__file__).parents[2]
DEPLOYMENT = HERE / "infra/deployment"
KUBERAY = DEPLOYMENT / "kuberay"
SETUP = HERE / "infra/setup/setup.sh"


def cluster() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load((KUBERAY / "cluster.yaml").read_text())["spec"]
    return spec


def groups() -> dict[str, dict[str, Any]]:
    spec = cluster()
    return {"head": spec["headGroupSpec"]} | {group["groupName"]: group for group in spec["workerGroupSpecs"]}


def pod(group: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = group["template"]["spec"]
    return spec


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod(group)["containers"]
    return dict(only)


def offered(group: dict[str, Any]) -> dict[str, float]:
    """What one machine of the group offers to Ray, as KubeRay and the shell of the container read it."""
    resources = group["rayStartParams"].get("resources", "'{}'")
    assert resources[0] == resources[-1] == "'"
    return dict(json.loads(resources[1:-1]))


def taken(config: RunConfig) -> list[tuple[int, dict[str, float], int]]:
    """How many take which resources, and GPUs each."""
    return [
        (config.rollout.runners, config.rollout.resources, 0),
        (config.engine.count, config.engine.resources, config.engine.tensor_parallel),
        (config.update.workers, config.update.resources, 1),
    ]


def test_the_recipe_of_the_cluster_can_work() -> None:
    config = load(str(KUBERAY / "recipe.yaml"))
    check_config(config)
    assert config.ray.address == "auto"
    assert (config.engine.device, config.update.device) == ("cuda", "cuda")  # the pod that leads has no GPU


def test_each_part_of_the_recipe_has_one_group_with_room_for_all_of_it() -> None:
    for count, wanted, gpus in taken(load(str(KUBERAY / "recipe.yaml"))):
        assert wanted
        (group,) = (each for each in groups().values() if offers(offered(each), wanted))
        room = min(int(offered(group)[name] // amount) for name, amount in wanted.items())
        assert count <= room * group["maxReplicas"]
        assert container(group)["resources"]["limits"].get("nvidia.com/gpu", 0) == room * gpus


def test_no_group_offers_what_no_part_takes_and_the_head_offers_nothing() -> None:
    config = load(str(KUBERAY / "recipe.yaml"))
    assert {name for group in groups().values() for name in offered(group)} == {
        name for _, wanted, _ in taken(config) for name in wanted
    }
    head = groups()["head"]
    assert offered(head) == {}
    assert head["rayStartParams"]["num-cpus"] == "0"


def test_only_sandboxes_come_and_go() -> None:
    assert cluster()["enableInTreeAutoscaling"] is True
    for name, group in groups().items():
        if name != "head":
            assert (group["minReplicas"] < group["maxReplicas"]) == (name == "sandboxes")
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_every_secret_is_by_reference() -> None:
    secret = re.compile(r"KEY|SECRET|TOKEN|PASSWORD", re.IGNORECASE)
    for group in groups().values():
        values = {each["name"]: each for each in container(group)["env"]}
        named = [name for name in values if secret.search(name)]
        assert "AWS_SECRET_ACCESS_KEY" in named
        assert all("secretKeyRef" in values[name]["valueFrom"] and "value" not in values[name] for name in named)
    assert cluster()["authOptions"] == {"mode": "token"}  # KubeRay makes the token and hands it to every container


def test_machines_agree_when_one_of_them_is_dead() -> None:
    for group in groups().values():
        values = {each["name"]: each.get("value") for each in container(group)["env"]}
        assert {name for name in values if name.startswith("RAY_health_check_")} == {
            "RAY_health_check_period_ms",
            "RAY_health_check_timeout_ms",
            "RAY_health_check_failure_threshold",
        }
        assert all(str(values[name]).isdigit() for name in values if name.startswith("RAY_"))
    assert len({json.dumps(container(group)["env"]) for group in groups().values()}) == 1


def test_every_pod_has_shared_memory_for_its_object_store_and_is_no_root() -> None:
    units = {"Mi": 1 << 20, "Gi": 1 << 30}
    for group in groups().values():
        (memory,) = (each["emptyDir"] for each in pod(group)["volumes"] if each.get("emptyDir", {}).get("medium") == "Memory")
        size = int(memory["sizeLimit"][:-2]) * units[memory["sizeLimit"][-2:]]
        assert int(group["rayStartParams"]["object-store-memory"]) + (300 << 20) < size  # what an engine's machine must have left
        mounted = {each["mountPath"]: each["name"] for each in container(group)["volumeMounts"]}
        assert mounted["/dev/shm"] == "shared-memory"
        assert set(mounted.values()) == {each["name"] for each in pod(group)["volumes"]}
        assert pod(group)["securityContext"]["runAsNonRoot"] is True


def test_pods_with_sandboxes_may_make_namespaces_and_the_others_may_not() -> None:
    for name, group in groups().items():
        security = container(group)["securityContext"]
        walls = ("Unmasked", "Unconfined", "Unconfined", False)
        found = (
            security.get("procMount"),
            security.get("seccompProfile", {}).get("type"),
            security.get("appArmorProfile", {}).get("type"),
            pod(group).get("hostUsers"),
        )
        assert found == (walls if name in ("head", "sandboxes") else (None, None, None, None))
        assert security["allowPrivilegeEscalation"] is False
        assert "privileged" not in security


def test_probes_look_at_ports_that_ray_is_told_to_take() -> None:
    for name, group in groups().items():
        port = 6379 if name == "head" else int(group["rayStartParams"]["node-manager-port"])
        for probe in ("livenessProbe", "readinessProbe"):
            assert container(group)[probe]["tcpSocket"]["port"] == port


def test_the_cluster_runs_the_locked_ray_and_the_image_has_its_user() -> None:
    (version,) = re.findall(r'name = "ray"\nversion = "([\d.]+)"', (HERE / "uv.lock").read_text())
    assert cluster()["rayVersion"] == version
    text = (DEPLOYMENT / "Containerfile").read_text()
    (user,) = re.findall(r"^USER (\d+):\d+$", text, re.M)
    assert f"--uid {user} " in text
    assert all(pod(group)["securityContext"]["runAsUser"] == int(user) for group in groups().values())


def test_what_kustomize_applies_exists_and_belongs_to_the_cluster() -> None:
    listed = yaml.safe_load((KUBERAY / "kustomization.yaml").read_text())
    (generated,) = listed["configMapGenerator"]
    assert all((KUBERAY / name).is_file() for name in [*listed["resources"], *generated["files"]])
    (mounted,) = (each["configMap"]["name"] for each in pod(groups()["head"])["volumes"] if "configMap" in each)
    assert mounted == generated["name"]
    name = yaml.safe_load((KUBERAY / "cluster.yaml").read_text())["metadata"]["name"]
    policy = yaml.safe_load((KUBERAY / "network-policy.yaml").read_text())["spec"]
    assert policy["podSelector"]["matchLabels"] == {"ray.io/cluster": name}


def test_the_image_is_made_of_files_that_exist_and_names_no_host() -> None:
    text = (DEPLOYMENT / "Containerfile").read_text()
    ignored = (HERE / ".dockerignore").read_text().split("\n")
    copied = [path for line in re.findall(r"^COPY (.+) \S+$", text, re.M) for path in line.split()]
    assert "uv.lock" in copied
    assert all((HERE / path).exists() and path not in ignored for path in copied)
    for file in [*DEPLOYMENT.rglob("*"), SETUP.parent / "packages.sh"]:
        if file.is_file():
            assert not re.search(r"\b(pypi|docker|quay|ghcr|nvcr)\.(org|io)\b", file.read_text()), file


@pytest.mark.process
def test_what_the_image_runs_of_nbrl_runs() -> None:
    lines = re.findall(r'\.venv/bin/python -c "(.+?)"', (DEPLOYMENT / "Containerfile").read_text())
    assert lines
    for line in lines:
        subprocess.run([sys.executable, "-c", line], check=True, timeout=120)


@pytest.mark.process
@pytest.mark.parametrize(("device", "engine"), [("cpu", "environment"), ("cuda", "cuda")])
def test_set_up_takes_the_locks_of_the_device_that_it_is_told_and_installs_nothing_to_say_so(device: str, engine: str) -> None:
    done = set_up(device, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"infra/engine/{engine}/uv.lock" in done.stdout
    assert ("infra/setup/torch-cuda.txt" in done.stdout) == (device == "cuda")
    for path in re.findall(r"infra/\S+", done.stdout):
        assert (HERE / path).is_file()


@pytest.mark.process
@pytest.mark.parametrize(("found", "engine"), [("exit 0", "cuda"), ("exit 9", "environment")])
def test_set_up_looks_for_a_gpu_where_it_is_told_nothing(tmp_path: Path, found: str, engine: str) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{found}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    for device in ("auto", ""):
        done = set_up(device, "--dry-run", PATH=f"{tmp_path}:{os.environ['PATH']}")
        assert f"infra/engine/{engine}/uv.lock" in done.stdout


@pytest.mark.process
def test_set_up_refuses_what_it_does_not_know() -> None:
    wrong = set_up("gpu", "--dry-run")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "NBRL_SETUP_DEVICE is 'gpu'; set it to cpu, cuda or auto" in wrong.stderr
    assert "does not know --fast" in set_up("cpu", "--fast").stderr


def set_up(device: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | variables | {"NBRL_SETUP_DEVICE": device}
    return subprocess.run([SETUP, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False)
