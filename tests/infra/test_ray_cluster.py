"""Our own Ray cluster, each time in a process of its own: it works, and nothing of it outlives that process."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError

from nbrl.infra.ray_cluster import RaySettings

from .test_processes import until

pytestmark = pytest.mark.ray

DRIVER = """
import os, signal, sys
from pathlib import Path
from nbrl.infra import ray_cluster

ray_cluster.start(ray_cluster.RaySettings(num_cpus=2, object_store_mb=100), Path(sys.argv[1]))
ray_cluster.start(ray_cluster.RaySettings(num_cpus=2), Path(sys.argv[1]))
import ray, ray.data

@ray.remote
def child():
    return os.environ["MARK"], os.environ["RAY_DATA_USE_DATASOURCE_V2"]

assert ray.cluster_resources()["CPU"] == 2
print(ray.get(child.remote()))
print(sum(row["id"] for row in ray.data.range(10).map_batches(lambda batch: batch).take_all()), flush=True)
if sys.argv[2] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "stop":
    ray_cluster.stop()
    assert not ray.is_initialized()
    ray_cluster.stop()
"""


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_works_and_leaves_nothing(tmp_path: Path, ending: str, processes: Callable[[str], list[int]]) -> None:
    mark = f"ray-{os.getpid()}-{ending}"
    outcome = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path), ending], env={**os.environ, "MARK": mark}, capture_output=True, text=True
    )
    assert outcome.stdout == f"('{mark}', '0')\n45\n", outcome.stderr
    assert outcome.returncode == (-9 if ending == "kill" else 0)
    assert "Traceback" not in outcome.stderr
    if ending == "kill":
        assert until(lambda: processes(f"MARK={mark}") == [])
    else:
        assert processes(f"MARK={mark}") == []


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom nbrl.infra import ray_cluster\nfrom nbrl.infra.errors import ServerError\n"
        "try:\n ray_cluster.start(ray_cluster.RaySettings(address='127.0.0.1:9'), Path(sys.argv[1]))\n"
        "except ServerError as error:\n print(error)"
    )
    outcome = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert outcome.stdout.startswith("no Ray cluster answers at 127.0.0.1:9")


def test_settings_that_would_do_nothing_are_refused() -> None:
    with pytest.raises(ValidationError, match="do nothing with an address"):
        RaySettings(address="127.0.0.1:1", num_cpus=2)
