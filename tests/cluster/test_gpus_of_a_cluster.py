"""Where engines and ranks are placed on two machines with eight GPUs each, which Ray is told of."""

import json
import os
import subprocess
import sys

import pytest

TRY = """
import json
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group, placement_group_table
from nbrl.infra.engine.actor import reserve
from nbrl.infra.engine.settings import EngineSettings

machine = {"num_cpus": 4, "num_gpus": 8, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**machine, "include_dashboard": False})
try:
    cluster.add_node(**machine)
    ray.init(address=cluster.address, log_to_driver=False)

    def nodes(group):
        assert group.wait(60)
        return sorted(placement_group_table(group)["bundles_to_node_id"].values())

    places = reserve(EngineSettings(device="cuda", count=8), 1)
    ranks = placement_group([{"CPU": 0.01, "GPU": 1}] * 8, strategy="PACK")  # as Ray Train asks for them
    print(json.dumps({"engines": nodes(places[0].group), "ranks": nodes(ranks)}))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.more
@pytest.mark.ray
def test_engines_leave_a_whole_machine_to_the_ranks() -> None:
    variables = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, env=variables, timeout=240)
    assert done.returncode == 0, done.stderr[-1500:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert [len({*nodes}) for nodes in found.values()] == [1, 1]
    assert found["engines"][0] != found["ranks"][0]
