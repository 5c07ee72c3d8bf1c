"""The newest metrics of runs, as Prometheus reads them."""

import http.client
import socket
import threading
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from nbrl.flows.pages.app import app
from nbrl.flows.pages.metrics import metrics_app
from nbrl.flows.pages.serving import served
from nbrl.infra.errors import ServerError
from nbrl.infra.process.child import free_port, port_in_use
from nbrl.infra.storage import Storage
from tests.flows.typed import nbrl
from tests.tasks.synced import RUN, begun, iteration


def scraped(storage: Storage) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = TestClient(app(storage), base_url="http://localhost").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return families_of(answer.text)


def families_of(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    families = text_string_to_metric_families(text)
    return {each.name: {tuple(sorted(one.labels.items())): one.value for one in each.samples} for each in families}


def test_the_newest_iteration_of_each_run_is_scraped(tmp_path: Path) -> None:
    storage = begun(tmp_path)
    storage.write_bytes("runs/r/run.json", RUN.model_dump_json().encode())
    assert all(not samples for samples in scraped(storage).values())
    for number in range(2):
        iteration(storage, number)
    found, of_run = scraped(storage), (("run", "r"),)
    assert found["nbrl_iterations"] == {of_run: 2.0}
    assert found["nbrl_iteration_finished_seconds"] == {of_run: 1001.0}
    assert found["nbrl_metric"] == {(("name", "reward/em"), *of_run): 0.1, (("name", "time/update"), *of_run): 1.0}


def test_a_damaged_run_hides_no_other(tmp_path: Path) -> None:
    storage = begun(tmp_path)
    storage.write_bytes("runs/r/run.json", RUN.model_dump_json().encode())
    iteration(storage, 0)
    storage.write_bytes("runs/q/run.json", b"{")
    assert found_runs(scraped(storage)) == {"r"}


def found_runs(found: dict[str, dict[tuple[tuple[str, str], ...], float]]) -> set[str]:
    return {dict(labels)["run"] for samples in found.values() for labels in samples}


def answer(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    return response.status, response.read().decode()  # the connection stays open, as Prometheus leaves it


def test_a_training_serves_the_metrics_of_its_own_run_on_this_machine_and_nothing_is_left(tmp_path: Path) -> None:
    storage = begun(tmp_path)
    threads, port = threading.active_count(), free_port()
    with served(metrics_app(storage, "r"), "127.0.0.1", port) as address:
        assert address == f"http://127.0.0.1:{port}"
        assert answer(port, "/metrics")[0] == 200  # before the run is on the storage
        for name in ("r", "other"):
            storage.write_bytes(f"runs/{name}/run.json", RUN.model_copy(update={"name": name}).model_dump_json().encode())
        iteration(storage, 0)
        assert families_of(answer(port, "/metrics")[1])["nbrl_iterations"] == {(("run", "r"),): 1.0}
        storage.write_bytes("runs/r/run.json", b"{")
        assert found_runs(families_of(answer(port, "/metrics")[1])) == set()
        assert answer(port, "/runs/r")[0] == 404
        assert answer(port, "/metrics", host="example.org")[0] == 403
        assert not [each for each in {"::1", socket.gethostbyname(socket.gethostname())} - {"127.0.0.1"} if reachable(each, port)]
    assert not port_in_use(port)
    assert threading.active_count() <= threads + 1  # a thread of a request that waits for the next one


def reachable(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.mark.process
@pytest.mark.parametrize("command", [["train", "tiny-cpu"], ["train", "tiny-cpu", "--dry-run"], ["resume", "r"]])
def test_a_port_for_metrics_that_is_taken_is_refused_before_anything_is_done(tmp_path: Path, command: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = nbrl(*command, "--metrics-port", str(port), folder=tmp_path)
        with pytest.raises(ServerError, match=f"nothing can be served at 127.0.0.1:{port}"), served(None, "127.0.0.1", port):
            pass
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"nbrl: --metrics-port {port} is taken: end what listens there, or choose another\n"
    assert not [*tmp_path.iterdir()]
