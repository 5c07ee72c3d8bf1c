"""The scripts of infra/deployment, with stand-ins for SLURM, Ray, kubectl and nbrl that write down how they were called."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

DEPLOYMENT = Path(__file__).parents[2] / "infra/deployment"
WAIT_S = 60.0
NODES = ("one", "two", "three")

# A step becomes the command itself, so that a signal to the step reaches it, as srun hands signals on.
SRUN = """
for argument; do
  case "$argument" in
    --nodelist=*) export NODE=${argument#*=}; shift ;;
    --*) shift ;;
    *) break ;;
  esac
done
exec "$@"
"""
SCONTROL = f'[ "$*" = "show hostnames n[1-3]" ] && printf "%s\\n" {" ".join(NODES)}'
HOSTNAME = 'echo "fd00::7 10.0.0.7 10.1.0.7 "'
RAY = """
line=$(printf '|%s' "$@" "$RAY_AUTH_MODE")
echo "$NODE$line" >>"$NOTES/ray"
echo $$ >>"$NOTES/pids"
[ "$NODE" != "$SILENT" ] || { echo "no way to join"; exit 1; }
echo "Ray runtime started."
trap 'exit 0' TERM
while :; do sleep 0.1; done
"""
NBRL = """
printf '%s|' "$NODE" "$@" >"$NOTES/nbrl"
stat -c %a "$RAY_AUTH_TOKEN_PATH" >"$NOTES/mode"
cat "$RAY_AUTH_TOKEN_PATH" >"$NOTES/token"
wc -l <"$NOTES/ray" >"$NOTES/joined"
trap 'echo stopped >"$NOTES/stopped"; exit 130' TERM
echo ready >"$NOTES/ready"
[ -z "$LONG" ] || while :; do sleep 0.1; done
exit "${STATUS:-0}"
"""
KUBECTL = """
printf '%s|' "$@" >>"$NOTES/kubectl"; echo >>"$NOTES/kubectl"
case "$1" in get) printf '%s' "$POD" ;; esac
"""
PROGRAMS = {"srun": SRUN, "scontrol": SCONTROL, "hostname": HOSTNAME, "ray": RAY, "nbrl": NBRL, "kubectl": KUBECTL}

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def begin(tmp_path: Path) -> Start:
    """Begin one of the scripts in an empty folder, as SLURM does: the node's number is in no variable."""
    for folder in ("bin", "home", "notes", "work"):
        (tmp_path / folder).mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/usr/bin/env bash\n{text.strip()}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def begin(script: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "HOME": f"{tmp_path}/home",
            "NOTES": f"{tmp_path}/notes",
            "SLURM_JOB_ID": f"7-{os.getpid()}",
            "SLURM_JOB_NODELIST": "n[1-3]",
            "SLURM_CPUS_PER_TASK": "4",
            "RAY_AUTH_TOKEN": "another cluster's",
            "SILENT": "",
            "LONG": "",
            "POD": "pod/nbrl-head-x",
        } | variables
        return subprocess.Popen(
            ["bash", str(DEPLOYMENT / script), *arguments],
            cwd=tmp_path / "work",
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    return begin


def noted(folder: Path, name: str) -> str:
    return (folder / "notes" / name).read_text()


def nothing_left(folder: Path) -> None:
    assert list((folder / "home").iterdir()) == []
    for pid in noted(folder, "pids").split():
        assert not Path("/proc", pid).exists()


def test_a_job_trains_once_all_nodes_have_joined_and_leaves_nothing(begin: Start, tmp_path: Path) -> None:
    job = begin("slurm.sh", "my.yaml", "--run", "first", STATUS="4")
    assert (job.communicate(timeout=WAIT_S)[1], job.returncode) == ("", 4)
    head, *others = noted(tmp_path, "ray").splitlines()
    name, *line = head.split("|")
    assert name == "one"
    assert line[:3] == ["start", "--head", "--port=6379"]
    assert {"--node-ip-address=10.0.0.7", "--num-cpus=4", '--resources={"rank": 1}', "--block"} <= {*line}
    assert {each.split("|")[0] for each in others} == {"two", "three"}
    assert all("--address=10.0.0.7:6379" in each and "|token" in each for each in others)
    assert '--resources={"sandbox": 2}' in next(each for each in others if each.startswith("three"))
    assert noted(tmp_path, "nbrl") == "one|train|my.yaml|--run|first|--set|ray.address=10.0.0.7:6379|"
    assert noted(tmp_path, "joined").strip() == "3"
    assert noted(tmp_path, "mode").strip() == "600"
    assert len(noted(tmp_path, "token")) == 64
    assert noted(tmp_path, "token") not in noted(tmp_path, "ray") + noted(tmp_path, "nbrl")
    nothing_left(tmp_path)


def test_the_last_resources_hold_for_all_further_nodes(begin: Start, tmp_path: Path) -> None:
    offer = '{"rank": 2};{"engine": 4}'
    job = begin("slurm.sh", "my.yaml", NBRL_RESOURCES=offer, NBRL_HEAD_ADDRESS="10.1.0.7", NBRL_PORT="7000")
    job.communicate(timeout=WAIT_S)
    given = sorted(part for part in noted(tmp_path, "ray").split("|") if part.startswith("--resources"))
    assert given == ['--resources={"engine": 4}', '--resources={"engine": 4}', '--resources={"rank": 2}']
    assert noted(tmp_path, "nbrl").endswith("ray.address=10.1.0.7:7000|")


def test_a_node_that_does_not_join_ends_the_job_with_its_last_line(begin: Start, tmp_path: Path) -> None:
    job = begin("slurm.sh", "my.yaml", SILENT="two")
    said = job.communicate(timeout=WAIT_S)[1]
    assert job.returncode == 1
    assert "Ray ended on two: no way to join; its log is nbrl-7" in said
    assert not (tmp_path / "notes/nbrl").exists()
    nothing_left(tmp_path)


def test_the_time_limit_stops_the_training_and_the_job_has_its_status(begin: Start, tmp_path: Path) -> None:
    job = begin("slurm.sh", "my.yaml", LONG="yes")
    wait_for(tmp_path / "notes/ready", job)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=WAIT_S)
    assert job.returncode == 130
    assert noted(tmp_path, "stopped").strip() == "stopped"
    nothing_left(tmp_path)


def test_a_job_without_recipe_or_with_too_few_nodes_says_so(begin: Start, tmp_path: Path) -> None:
    for arguments, variables, words in (
        ((), {}, "give a recipe"),
        (("my.yaml",), {"NBRL_RESOURCES": "{};{};{};{}"}, "names 4 nodes and the job has 3"),
        (("my.yaml",), {"SLURM_JOB_ID": ""}, "runs in a job of SLURM"),
    ):
        job = begin("slurm.sh", *arguments, **variables)
        assert words in job.communicate(timeout=WAIT_S)[1]
        assert job.returncode == 1
    assert list((tmp_path / "notes").iterdir()) == list((tmp_path / "home").iterdir()) == []


def test_a_training_in_a_pod_outlives_the_command_that_starts_it(begin: Start, tmp_path: Path) -> None:
    done = begin("kuberay/train.sh", "first", "--set", "iterations=3")
    assert done.communicate(timeout=WAIT_S)[1] == ""
    get, start, follow = noted(tmp_path, "kubectl").splitlines()
    assert get.startswith("get|pods|--selector|ray.io/cluster=nbrl,ray.io/node-type=head|")
    assert start.startswith("exec|pod/nbrl-head-x|--container|ray-head|--|bash|-c|setsid nbrl train /etc/nbrl/recipe.yaml ")
    assert start.endswith("&|first|--set|iterations=3|")
    assert follow.endswith("/home/nbrl/first.log|")
    assert "no pod leads" in begin("kuberay/train.sh", "first", POD="").communicate(timeout=WAIT_S)[1]
    assert "is no name of a run" in begin("kuberay/train.sh", "--help").communicate(timeout=WAIT_S)[1]


@pytest.mark.parametrize("script", ["slurm.sh", "kuberay/train.sh"])
def test_scripts_are_programs_that_bash_can_read(script: str) -> None:
    assert os.access(DEPLOYMENT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(DEPLOYMENT / script)], check=True, timeout=WAIT_S)


def wait_for(file: Path, job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not file.exists():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
