"""Our own Ray cluster, each time in a process of its own: it works, and nothing of it outlives that process."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbrl.infra.process.child import free_port

from .test_processes import until

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

DRIVER = """
import os, signal, sys
from pathlib import Path
from nbrl.infra import ray_cluster

ray_cluster.start(ray_cluster.RaySettings(num_cpus=2), Path(sys.argv[1]))
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


FEW = """
import os, sys
from pathlib import Path
from nbrl.infra import ray_cluster
from tests.processes import descendants, told

ray_cluster.start(ray_cluster.RaySettings(num_cpus=1), Path(sys.argv[1]))
import ray

@ray.remote(num_cpus=0, runtime_env={"env_vars": {"GIVEN": "as asked"}})
def given():
    import gc
    return os.environ["GIVEN"], gc.get_threshold()[0]

print(ray.get(given.remote()))
running = [told(pid).partition(b"raylet_socket")[0] for pid in descendants(os.getpid())]  # the raylet's line names its workers
print([each for each in (b"client.server", b"monitor.py", b"dashboard.py") if any(each in line for line in running)])
ray_cluster.stop()
"""


@pytest.mark.more
def test_unused_servers_are_left_out_and_workers_get_the_variables_that_they_are_given(tmp_path: Path) -> None:
    outcome = subprocess.run([sys.executable, "-c", FEW, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert outcome.stdout == "('as asked', 50000)\n[]\n", outcome.stderr


@pytest.mark.parametrize("ending", ["stop", pytest.param("kill", marks=pytest.mark.more)])
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


STRANGER = """
import os, sys
os.environ.update(RAY_AUTH_MODE=sys.argv[2], RAY_AUTH_TOKEN=sys.argv[3], RAY_gcs_rpc_server_reconnect_timeout_s="5")
import ray

try:
    ray.init(address=sys.argv[1], _node_ip_address="127.0.0.1", log_to_driver=False)
except BaseException as error:
    print("refused", error)
else:
    print("welcome")
"""


@pytest.mark.more
@pytest.mark.parametrize(("mode", "token"), [("disabled", ""), ("token", "a" * 64)])
def test_who_has_not_the_token_is_refused(tmp_path: Path, mode: str, token: str) -> None:
    script = DRIVER.replace("import ray, ray.data", "print(ray_cluster._port, flush=True)\nsys.stdin.read()\nsys.exit()", 1)
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path), "stop"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin is not None
        assert owner.stdout is not None
        port = int(owner.stdout.readline())
        line = [sys.executable, "-c", STRANGER, f"127.0.0.1:{port}", mode, token]
        told = subprocess.run(line, capture_output=True, text=True, timeout=120)
        owner.stdin.close()
    assert "welcome" not in told.stdout
    assert "refused" in told.stdout or told.returncode != 0


@pytest.mark.more
def test_the_token_is_its_owners_alone(tmp_path: Path) -> None:
    script = DRIVER.replace(
        "import ray, ray.data",
        "token = Path(os.environ['RAY_AUTH_TOKEN_PATH'])\nprint(oct(token.stat().st_mode), oct(token.parent.stat().st_mode))\n"
        "print(len(token.read_text()))\nray_cluster.stop()\nprint(token.exists())\nsys.exit()",
        1,
    )
    outcome = subprocess.run([sys.executable, "-c", script, str(tmp_path), "stop"], capture_output=True, text=True)
    assert outcome.stdout == "0o100600 0o40700\n64\nFalse\n", outcome.stderr


def test_no_cluster_at_the_address(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom nbrl.infra import ray_cluster\nfrom nbrl.infra.errors import ServerError\n"
        "try:\n ray_cluster.start(ray_cluster.RaySettings(address='127.0.0.1:9'), Path(sys.argv[1]))\n"
        "except ServerError as error:\n print(error)"
    )
    outcome = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert outcome.stdout.startswith("no Ray cluster answers at 127.0.0.1:9")


JOINING = """
import sys
from pathlib import Path
from nbrl.infra import ray_cluster
from nbrl.infra.errors import ServerError

try:
    ray_cluster.start(ray_cluster.RaySettings(address=sys.argv[1]), Path(sys.argv[2]))
except ServerError as error:
    sys.exit(f"refused: {error}")
import ray
print(ray.get(ray.remote(num_cpus=0)(lambda: 6 * 7).remote()))
ray_cluster.stop()
"""


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a cluster of somebody else's that asks for a token, and the variables with which it is let in."""
    (tmp_path / "token").write_text("b" * 64)
    variables = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    address = f"127.0.0.1:{free_port()}"
    head = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", f"--port={address.rpartition(':')[2]}"]
    head += ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    with tempfile.TemporaryDirectory(prefix="nbrl-", dir="/tmp") as folder, open(tmp_path / "head.log", "wb") as log:
        line = [*head, "--include-dashboard=false", f"--temp-dir={folder}"]
        with subprocess.Popen(line, env=os.environ | variables, stdout=log, stderr=log, start_new_session=True) as cluster:
            try:
                assert until(lambda: "Ray runtime started" in (tmp_path / "head.log").read_text(), 120)
                yield address, variables
            finally:
                cluster.terminate()


@pytest.mark.more
def test_a_cluster_that_asks_for_a_token_is_joined_with_it_and_not_with_another(
    tmp_path: Path, guarded: tuple[str, dict[str, str]]
) -> None:
    address, variables = guarded
    line = [sys.executable, "-c", JOINING, address, str(tmp_path)]
    joined = subprocess.run(line, env=os.environ | variables, capture_output=True, text=True, timeout=120)
    assert joined.stdout == "42\n", joined.stderr
    (tmp_path / "other").write_text("c" * 64)
    wrong = os.environ | variables | {"RAY_AUTH_TOKEN_PATH": str(tmp_path / "other")}
    quick = {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}
    refused = subprocess.run(line, env=wrong | quick, capture_output=True, text=True, timeout=120)
    assert refused.returncode != 0
    assert "42" not in refused.stdout
