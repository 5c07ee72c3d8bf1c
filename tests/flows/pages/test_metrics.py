"""The newest metrics of runs, as Prometheus reads them."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from nbrl.flows.pages.app import app
from nbrl.infra.storage import Storage
from tests.tasks.synced import RUN, begun, iteration


def scraped(storage: Storage) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    answer = TestClient(app(storage), base_url="http://localhost").get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
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
