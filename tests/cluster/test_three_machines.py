"""A training over three machines that share no disk: S3 and the network are all that they have in common."""

import sys
from pathlib import Path

import pytest

from nbrl.infra.engine.arguments import needed
from tests.cluster.conftest import RESOURCES
from tests.cluster.machines import Machines
from tests.cluster.runs import TINY, command, flags, folder, settings, stored, train, trajectories, until_stored

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

SGLANG = f".venv-engine/lib/python3.{sys.version_info.minor}/site-packages/sglang-{needed()}.dist-info/METADATA"
CHECKOUT = Path(__file__).parents[2]
OF_NUMPY = CHECKOUT.glob(".venv-kernels/lib/*/site-packages/numpy-*.dist-info/METADATA")
NUMPY = next((str(each.relative_to(CHECKOUT)) for each in OF_NUMPY), "")


@pytest.mark.machines
def test_engine_sandboxes_and_ranks_stand_on_three_machines(machines: Machines) -> None:
    done = train(machines, "spread")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert {row["status"] for row in trajectories(machines, "spread")} <= {"answered", "no_answer", "step_limit", "token_limit"}
    shards = {path.name for path in folder(machines, "spread").glob("checkpoints/000002-*/state/*")}
    assert {".metadata", "__0_0.distcp", "__1_0.distcp"} <= shards
    record = stored(machines, "runs/spread/iterations/000001/record.json")
    assert record["metrics"]["publish/tensors_proved"] > 0
    for name in "bc":
        assert machines.on(name, "test", "-e", "/srv/run/model").returncode == 1
    assert [line for name in "abc" for line in machines.processes(name) if "sglang" in line or "bwrap" in line] == []


@pytest.mark.long
def test_weights_reach_an_engine_on_another_machine_without_the_storage(machines: Machines) -> None:
    kept = "find /root/.cache/nbrl -path '*/hf/*.safetensors' 2>/dev/null | wc -l"
    before = machines.on("b", "bash", "-c", kept).stdout
    done = train(machines, "sent", **{"publish.via": "broadcast"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "from the storage" not in done.stderr
    assert stored(machines, "runs/sent/iterations/000001/record.json")["metrics"]["publish/tensors_proved"] > 0
    assert machines.on("b", "bash", "-c", kept).stdout == before


@pytest.mark.machines
def test_a_machine_with_sandboxes_that_falls_silent_costs_time_and_no_trajectory(machines: Machines) -> None:
    large = {"rollout.prompts": 32, "rollout.group_size": 8, "update.resources": "{}", "update.workers": 1}
    training = machines.begin("a", *command(machines, "silent", **large), log="silent", **machines.variables)
    until_stored(machines, "silent/iterations/000001/**/trajectories/**/*.parquet")
    machines.kill("c")
    try:
        assert training.wait(600) == 0, machines.log("silent")
        assert "failed" not in {row["status"] for row in trajectories(machines, "silent")}
        assert "gives no sign; others run what it had not finished" in machines.log("silent")
    finally:
        machines.boot("c")
        machines.join("c", RESOURCES["c"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("mount --bind /dev/null /usr/bin/bwrap", "cannot run sandboxes"),
        ("mount -t tmpfs tmpfs {checkout}/.venv-engine/bin", "has no engine environment"),
        ("mount --bind /dev/null {checkout}/agent/text.py", "has another version of nbrl"),
        (
            f"sed 's/^Version: .*/Version: 0.1/' {{checkout}}/{SGLANG} >/tmp/x; mount --bind /tmp/x {{checkout}}/{SGLANG}",
            "has SGLang 0.1 in",
        ),
        (
            f"sed 's/^Version: .*/Version: 0.1/' {{checkout}}/{NUMPY} >/tmp/x; mount --bind /tmp/x {{checkout}}/{NUMPY}",
            "has for kernels numpy 0.1, and 10.77.0.1 (machine-a) has numpy ",
        ),
        ("mount -t tmpfs -o size=1m tmpfs /dev/shm", "has 1 MB left in /dev/shm"),
    ],
)
def test_a_machine_that_cannot_do_its_part_is_named_before_anything_starts(machines: Machines, broken: str, said: str) -> None:
    assert machines.on("b", "bash", "-c", broken.format(checkout=machines.checkout)).returncode == 0
    try:
        refused = train(machines, "refused")
        assert refused.returncode == 1
        assert f"nbrl: {machines.address('b')} (machine-b): {said}" in " ".join(refused.stderr.split())
        assert not list(folder(machines, "refused").glob("iterations"))
    finally:
        machines.on("b", "umount", broken.format(checkout=machines.checkout).split()[-1])


@pytest.mark.long
def test_the_doctor_says_of_each_machine_what_it_can_do_and_what_the_cluster_lacks(machines: Machines) -> None:
    asked = flags(settings(machines, **{"engine.resources": "{engine: 5}", "policy.path": f"{machines.checkout}/{TINY}"}))
    done = machines.on("a", "nbrl", "doctor", *asked, limit_s=300, **machines.variables)
    assert done.returncode == 1
    said = " ".join(done.stdout.split())
    for name in "abc":
        assert f"✓ {machines.address(name)} (machine-{name}): can do its part" in said
    assert "✗ cluster: engine: the machines have room for 0 of 1 that take 5 of engine" in said
    assert "✓ recipe" in said
