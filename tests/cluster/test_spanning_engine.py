"""An engine whose weights are split over two machines of a cluster."""

import signal

import pytest

from tests.cluster.machines import Machines
from tests.cluster.runs import command, stored, train, trajectories, until_stored

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(1200)]

SPANNING = {"engine.machines": 2, "engine.tensor_parallel": 2, "engine.resources": "{half: 1}", "rollout.runners": 2}
ENGINE = "sglang::scheduler"


def halves(machines: Machines) -> list[str]:
    """The machines with a part of an engine."""
    return [name for name in machines.names if any(ENGINE in line for line in machines.processes(name))]


def test_it_takes_weights_and_starts_again_when_one_of_its_machines_loses_its_part(machines: Machines) -> None:
    training = machines.begin("a", *command(machines, "spanning", **SPANNING), log="spanning", **machines.variables)
    until_stored(machines, "spanning/iterations/000001/**/trajectories/**/*.parquet")
    assert halves(machines) == ["b", "c"]
    assert machines.on("c", "pkill", f"-{signal.SIGKILL.value}", "-f", ENGINE).returncode == 0
    assert training.wait(600) == 0, machines.log("spanning")
    assert "engine 0 ended" in machines.log("spanning")
    assert {row["status"] for row in trajectories(machines, "spanning")} <= {"answered", "no_answer", "step_limit", "token_limit"}
    assert stored(machines, "runs/spanning/iterations/000001/record.json")["metrics"]["publish/tensors_proved"] > 0
    assert halves(machines) == []


def test_weights_reach_all_its_machines_without_the_storage(machines: Machines) -> None:
    done = train(machines, "spanning-sent", **SPANNING, **{"publish.via": "broadcast"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "from the storage" not in done.stderr
    assert stored(machines, "runs/spanning-sent/iterations/000001/record.json")["metrics"]["publish/tensors_proved"] > 0
