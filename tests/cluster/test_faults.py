"""What dies on a cluster of three machines, loudly and silently, and what that costs."""

import signal
import time

import pytest

from tests.cluster.conftest import RESOURCES
from tests.cluster.machines import SECRET, Machines
from tests.cluster.runs import TINY, command, folder, stored, train, trajectories, until_stored

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

LARGE = {"rollout.prompts": 32, "rollout.group_size": 8}
SCORED = {"answered", "no_answer", "step_limit", "token_limit", "timeout"}


def kill(machines: Machines, name: str, pattern: str) -> None:
    """Kill processes of a machine by their command line."""
    assert machines.on(name, "pkill", f"-{signal.SIGKILL.value}", "-f", pattern).returncode == 0


def left(machines: Machines, name: str) -> list[str]:
    """Processes of ours on a machine; those of Ray that wait for work are Ray's own."""
    return [line for line in machines.processes(name) if any(mark in line for mark in ("sglang", "bwrap", "zygote", "nbrl"))]


def switch_on(machines: Machines, name: str) -> None:
    """Switch a machine on that is dead, and let it join."""
    machines.boot(name)
    machines.join(name, RESOURCES[name])


def cut_off(machines: Machines, name: str, run: str, **more: object) -> set[str]:
    """How the trajectories of a training ended during whose first rollout a machine's cable was out for 20 s."""
    training = machines.begin("a", *command(machines, run, **LARGE, **more), log=run, **machines.variables)
    until_stored(machines, f"{run}/iterations/000000/**/trajectories/**/*.parquet")
    machines.unplug(name)
    time.sleep(20)
    machines.plug(name)
    assert training.wait(600) == 0, machines.log(run)
    return {row["status"] for row in trajectories(machines, run)}


def test_a_network_that_is_gone_for_a_while_costs_no_trajectory(machines: Machines) -> None:
    assert cut_off(machines, "c", "unplugged") <= SCORED


def test_an_engine_out_of_reach_makes_no_time_out_that_is_scored(machines: Machines) -> None:
    short = {"rollout.episodes_per_runner": 8, "agent.deadline_s": 12}  # less than the cable is out
    assert cut_off(machines, "b", "unreached", **short) <= SCORED - {"timeout"}


def test_of_a_machine_with_sandboxes_that_crashes_no_trajectory_is_lost(machines: Machines) -> None:
    leader = {"update.workers": 1, "update.resources": f'{{"node:{machines.address("a")}": 0.01}}'}
    training = machines.begin("a", *command(machines, "crashed", **LARGE, **leader), log="crashed", **machines.variables)
    until_stored(machines, "crashed/iterations/000000/**/trajectories/**/*.parquet")
    assert any("bwrap" in line for line in left(machines, "c"))
    machines.crash("c")  # its connections are closed, so that the others hear of it at once
    try:
        assert training.wait(600) == 0, machines.log("crashed")
        assert {row["status"] for row in trajectories(machines, "crashed")} <= SCORED
        sizes = [stored(machines, f"runs/crashed/iterations/00000{number}/record.json")["metrics"] for number in (0, 1)]
        assert [each["rollout/trajectories"] for each in sizes] == [256, 256]
    finally:
        switch_on(machines, "c")


def test_an_engine_that_dies_is_started_again_with_its_weights(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "engine", **LARGE), log="engine", **machines.variables)
    until_stored(machines, "engine/iterations/000001/**/trajectories/**/*.parquet")
    kill(machines, "b", "sglang::")
    assert training.wait(600) == 0, machines.log("engine")
    assert {row["status"] for row in trajectories(machines, "engine")} <= SCORED
    assert "engine 0 ended" in machines.log("engine")


def test_an_engine_whose_machine_falls_silent_starts_on_another_one(machines: Machines) -> None:
    anywhere = LARGE | {"engine.resources": "{half: 1}", "update.resources": "{}", "update.workers": 1}
    training = machines.begin("a", *command(machines, "elsewhere", **anywhere), log="elsewhere", **machines.variables)
    until_stored(machines, "elsewhere/iterations/000001/**/trajectories/**/*.parquet")
    (lost,) = [name for name in "bc" if any("sglang::" in line for line in machines.processes(name))]
    machines.kill(lost)
    try:
        assert training.wait(900) == 0, machines.log("elsewhere")
        assert "engine 0" in machines.log("elsewhere")
        assert {row["status"] for row in trajectories(machines, "elsewhere")} <= SCORED
    finally:
        switch_on(machines, lost)


def test_a_rank_that_dies_costs_its_order_and_the_run_goes_on(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "rank"), log="rank", **machines.variables)
    until_stored(machines, "rank/iterations/000000/**/trajectories.index.parquet")
    kill(machines, "c", "ray::RayTrainWorker")
    assert training.wait(600) == 0, machines.log("rank")
    assert "its order is carried out again" in machines.log("rank")
    record = stored(machines, "runs/rank/iterations/000001/record.json")
    assert record["metrics"]["publish/tensors_proved"] > 0
    undisturbed = train(machines, "undisturbed")
    assert undisturbed.returncode == 0, undisturbed.stdout[-3000:] + undisturbed.stderr[-3000:]
    assert record["weights"] == stored(machines, "runs/undisturbed/iterations/000001/record.json")["weights"]


def test_a_rank_whose_machine_falls_silent_is_waited_for_and_carries_out_the_order_there(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "silent-rank", **LARGE), log="silent-rank", **machines.variables)
    until_stored(machines, "silent-rank/iterations/000000/**/trajectories.index.parquet")
    machines.kill("c")
    time.sleep(90)  # longer than Ray takes to find that out
    switch_on(machines, "c")
    assert training.wait(600) == 0, machines.log("silent-rank")
    assert "its order is carried out again" in machines.log("silent-rank")
    assert {row["status"] for row in trajectories(machines, "silent-rank")} <= SCORED


def test_a_run_whose_leading_process_was_killed_goes_on_from_another_machine(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "moved"), log="moved", **machines.variables)
    until_stored(machines, "moved/iterations/000000/record.json")
    kill(machines, "a", "nbrl train tiny-cpu")
    training.wait(60)
    on_b = command(machines, "moved", **{"update.workers": 1})
    machines.on("b", "cp", "-rLT", f"{machines.checkout}/{TINY}", "/srv/run/model")
    refused = machines.on("b", *on_b, limit_s=600, **machines.variables)
    assert refused.returncode == 1
    assert "is being worked on by process" in refused.stderr  # nobody on b can see that it is dead
    done = machines.on("b", *on_b, "--take-over", limit_s=600, **machines.variables)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (folder(machines, "moved") / "iterations/000001/record.json").exists()
    assert machines.on("b", "rm", "-r", "/srv/run/model").returncode == 0


def test_a_machine_whose_name_is_a_loopback_address_takes_part(machines: Machines) -> None:
    hosts = "grep -v machine-c /etc/hosts > /tmp/hosts; echo 127.0.1.1 machine-c >> /tmp/hosts"
    assert machines.on("c", "bash", "-c", f"{hosts}; mount --bind /tmp/hosts /etc/hosts").returncode == 0
    try:
        done = train(machines, "named", iterations=1)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    finally:
        machines.on("c", "umount", "/etc/hosts")


def test_of_a_raylet_that_dies_nothing_stays_on_its_machine_and_the_run_goes_on_once_that_is_back(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "raylet", **LARGE), log="raylet", **machines.variables)
    until_stored(machines, "raylet/iterations/000000/**/trajectories/**/*.parquet")
    assert any("bwrap" in line for line in left(machines, "b"))
    kill(machines, "b", "raylet/raylet")
    try:
        deadline = time.monotonic() + 60
        while lines := left(machines, "b"):
            assert time.monotonic() < deadline, lines
            time.sleep(1)
    finally:
        machines.kill("b")
        switch_on(machines, "b")
    assert training.wait(600) == 0, machines.log("raylet")
    assert {row["status"] for row in trajectories(machines, "raylet")} <= SCORED


def test_after_a_run_nothing_is_left_on_any_machine(machines: Machines) -> None:
    done = train(machines, "clean", iterations=1)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    for name in machines.names:
        assert left(machines, name) == []
        found = machines.on(name, "ls", "/tmp").stdout.split()
        assert [each for each in found if each.startswith("nbrl-")] == []


def test_a_forwarded_secret_stands_in_no_file_of_any_machine_nor_on_the_storage(machines: Machines) -> None:
    done = train(machines, "forwarded", iterations=1)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert SECRET not in done.stdout + done.stderr
    for name in machines.names:
        found = machines.on(name, "grep", "-rl", SECRET, "/tmp", "/root", "/srv", "/dev/shm")
        assert (found.returncode, found.stdout) == (1, ""), found.stderr
    assert [path for path in machines.bucket.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()] == []
