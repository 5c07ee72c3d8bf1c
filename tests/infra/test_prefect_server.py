"""The real Prefect server."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from nbrl.infra import prefect_server
from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home

from .test_processes import until

pytestmark = pytest.mark.process

FLOW = """
import asyncio
from prefect import flow, task

@task
async def twice(x):
    return {"result": 2 * x}

@flow
async def main():
    return await twice(21)

print(asyncio.run(main())["result"])
"""
OWNER = """
import sys, time
from nbrl.infra import prefect_server
from nbrl.infra.home import Home
server = prefect_server.ensure(Home(sys.argv[1]))
print(server.url, flush=True)
time.sleep(1000)
"""


@pytest.mark.more
def test_flows_run_on_a_server_that_others_join(home: Home, processes: Callable[[str], list[int]]) -> None:
    server = prefect_server.ensure(home)
    try:
        assert server.owned
        joined = prefect_server.ensure(home)
        assert (joined.url, joined.owned) == (server.url, False)
        joined.stop()
        environment = os.environ | prefect_server.environment(home, server.url)
        ran = subprocess.run([sys.executable, "-c", FLOW], env=environment, capture_output=True, text=True, check=True)
        assert ran.stdout == "42\n"
        asks = {"Origin": "http://elsewhere.example", "Access-Control-Request-Method": "POST"}
        answer = httpx.options(f"{server.url}/api/deployments/", headers=asks, trust_env=False)
        assert "access-control-allow-origin" not in answer.headers  # a browser lets no other site command the server
    finally:
        server.stop()
    assert processes(str(home.root)) == []


@pytest.mark.more
def test_a_killed_server_is_started_again_on_its_port_while_a_flow_waits(
    home: Home, processes: Callable[[str], list[int]], tmp_path: Path
) -> None:
    wait = f"    print('begun', flush=True)\n    while not os.path.exists('{tmp_path}/go'):\n        time.sleep(0.1)\n"
    flow = "import os, time\n" + FLOW.replace("    return await", f"{wait}    return await")
    said: list[str] = []
    server = prefect_server.ensure(home)
    try:
        with server.kept_up(said.append):
            environment = os.environ | prefect_server.environment(home, server.url)
            running = subprocess.Popen([sys.executable, "-c", flow], env=environment, stdout=subprocess.PIPE, text=True)
            assert running.stdout is not None
            assert running.stdout.readline() == "begun\n"
            for pid in processes("uvicorn"):
                if "keeper.py" not in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)
            (tmp_path / "go").touch()
            assert until(lambda: bool(said), 120)
            assert running.communicate()[0].endswith("42\n")
        assert len(said) == 1
        assert said[0].startswith("the Prefect server ended; started again in")
    finally:
        server.stop()
    assert processes(str(home.root)) == []


@pytest.mark.more
def test_ends_with_a_killed_owner(home: Home, processes: Callable[[str], list[int]]) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(home.root)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline().startswith("http://127.0.0.1:")
    owner.kill()
    owner.wait()
    assert until(lambda: processes(str(home.root)) == [])


@pytest.mark.more
def test_server_that_does_not_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    (home.prefect / "prefect.db").write_text("this is no database, but it is long enough to be taken for one" * 20)
    monkeypatch.setattr(prefect_server, "START_TIMEOUT_S", 60)
    with pytest.raises(ServerError, match="ended while it started"):
        prefect_server.ensure(home)
