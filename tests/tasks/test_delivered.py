"""The real MLflow after the delivery of a run: what its pages show, and the same when it is rebuilt."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from nbrl.flows.cli.commands import app
from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.infra.tracking import Tracking, TrackingSettings
from nbrl.infra.tracking_ui import ui
from nbrl.tasks.audit.chain import check_tracking
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.pins import Champion, recorded
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.tracking.mlflow_sync import MlflowSync, deliver
from nbrl.tasks.tracking.promote import promote, show_champion
from tests.tasks.synced import CONFIG, RUN, begun, evaluated
from tests.tasks.test_champions import made

# MLflow asks git where it is.
pytestmark = pytest.mark.process


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return begun(tmp_path)


def tracking(folder: Path, name: str = "home") -> Tracking:
    return Tracking(TrackingSettings(), Home(folder / name))


def delivered(storage: Storage, folder: Path, name: str = "home") -> Tracking:
    to = tracking(folder, name)
    deliver(MlflowSync(CONFIG, storage, RUN, to), to)
    assert to.find_run("r", {"nbrl.run_id": "x"})
    return to


def shown_champion(storage: Storage, champion: Champion, folder: Path) -> str:
    return show_champion(storage, champion, TrackingSettings(), Home(folder / "home"))


def shown(to: Tracking) -> dict[str, Any]:
    """What MLflow has of the run, without what it draws itself."""
    run = to.client.get_run(to.run_id)
    traces = to.client.search_traces(locations=[to.experiment_id], run_id=to.run_id, include_spans=False)
    versions = to.models.versions("nbrl-tiny")
    return {
        "tags": {name: value for name, value in run.data.tags.items() if "loggedArtifacts" not in name},
        "params": run.data.params,
        "status": (run.info.status, run.info.start_time, run.info.end_time),
        "metrics": {name: to.history(name) for name in run.data.metrics},
        "inputs": sorted((each.dataset.name, each.dataset.digest) for each in run.inputs.dataset_inputs),
        "models": sorted(
            (model.name, model.tags["uri"], sorted((metric.key, metric.value, metric.step) for metric in model.metrics))
            for model in to.client.search_logged_models([to.experiment_id], f"source_run_id = '{to.run_id}'")
        ),
        "versions": sorted((version.tags["uri"], tuple(sorted(version.aliases))) for version in versions),
        "traces": sorted(
            (
                trace.info.tags.get("iteration", "") + "/" + trace.info.tags.get("evaluation", ""),
                trace.info.tags["mlflow.traceName"],
                sorted((each.name, str((each.expectation or each.feedback).value)) for each in trace.info.assessments),
            )
            for trace in traces
        ),
        "artifacts": sorted(
            file.path for folder in (None, "evaluations") for file in to.client.list_artifacts(to.run_id, folder)
        ),
    }


def test_a_run_is_delivered_and_rebuilt_alike(storage: Storage, tmp_path: Path) -> None:
    take(storage, RUN.layout, commit="c0ffee")
    evaluated(storage, Weights(digest="w0"))
    records = made(storage, 2)
    promote(storage, "r", 1)
    first = delivered(storage, tmp_path)
    found = shown(first)
    assert found == shown(delivered(storage, tmp_path))  # a second time
    assert found == shown(delivered(storage, tmp_path, "another"))
    assert found["status"][0] == "KILLED"
    assert found["tags"]["nbrl.ended"] == "its process ended without saying why"
    assert found["tags"]["mlflow.source.git.commit"] == "c0ffee"
    assert {"mlflow.user", "nbrl.host", "nbrl.version", "nbrl.recipe", "nbrl.model", "nbrl.command"} <= set(found["tags"])
    assert found["versions"] == [
        (storage.uri(records[0].checkpoint), ("champion",)),
        (storage.uri(records[1].checkpoint), ("best", "last")),
    ]
    name, _, metrics = found["models"][1]
    assert name == "000002-r"
    assert metrics == [("main/held_out_success", 0.7, 2), ("more/eval/em", 0.5, 2), ("more/reward/em", 0.1, 2)]
    assert "evaluations/000002.json" in found["artifacts"]
    assert "config.yaml" in found["artifacts"]
    right = [("exact_match", "True"), ("expected_answer", "1"), ("reward", "0.5"), ("success", "True")]
    assert ("0/", "q-1", right) in found["traces"]
    assert list(check_tracking(first, RUN, records)) == []


@pytest.mark.more
def test_a_server_shows_what_a_database_shows(storage: Storage, tmp_path: Path) -> None:
    take(storage, RUN.layout, commit="c0ffee")
    made(storage, 2)
    promote(storage, "r", 1)
    home = Home(tmp_path / "served")
    page = ui(home)
    try:
        to = Tracking(TrackingSettings(uri=page.url), home)
        for _ in range(2):
            deliver(MlflowSync(CONFIG, storage, RUN, to), to)
        assert to.find_run("r", {"nbrl.run_id": "x"})
        found = shown(to)
    finally:
        page.stop()
    assert found == shown(delivered(storage, tmp_path))


@pytest.mark.more
def test_a_champion_is_an_alias_in_mlflow(storage: Storage, tmp_path: Path) -> None:
    made(storage, 2)
    champion = promote(storage, "r", 1)
    to = delivered(storage, tmp_path)
    assert shown_champion(storage, champion, tmp_path).startswith("models:/nbrl-tiny@champion")
    newer = promote(storage, "r", None)
    shown_champion(storage, newer, tmp_path)
    assert to.client.get_model_version_by_alias("nbrl-tiny", "champion").tags["nbrl.updates"] == "2"
    assert to.client.get_run(to.run_id).info.status == "KILLED"  # as it was


@pytest.mark.more
def test_the_champion_of_a_storage_that_was_moved_is_an_alias_at_its_new_place(storage: Storage, tmp_path: Path) -> None:
    made(storage, 3)
    to = delivered(storage, tmp_path)
    moved = Storage(StorageSettings(root=str(tmp_path / "elsewhere")))
    shutil.move(storage.settings.root, moved.settings.root)
    champion = promote(moved, "r", 1)
    assert shown_champion(moved, champion, tmp_path).startswith("models:/nbrl-tiny@champion")
    version = to.client.get_model_version_by_alias("nbrl-tiny", "champion")
    assert version.tags["uri"] == moved.uri(champion.checkpoint)
    assert version.description.endswith(moved.uri(champion.checkpoint))
    assert not any(model.deleted for model in to.models.of_run().values())
    last = to.client.get_model_version_by_alias("nbrl-tiny", "last")
    assert last.description.endswith(last.tags["uri"])
    assert last.tags["uri"] == moved.uri(RUN.layout.checkpoint(3, "e0001-abcdef"))


@pytest.mark.more
def test_the_champion_of_another_run_is_not_mistaken_for_this_one(storage: Storage, tmp_path: Path) -> None:
    made(storage, 2)
    to = delivered(storage, tmp_path)
    (version,) = to.models.versions("nbrl-tiny")
    to.models.tag_version("nbrl-tiny", version.number, "nbrl.run_id", "other")
    to.models.set_alias("nbrl-tiny", "champion", version.number)
    to.client.delete_logged_model(to.models.of_run()[2].id)  # as before the second iteration was delivered
    with pytest.raises(ServerError, match="does not have this checkpoint yet"):
        shown_champion(storage, promote(storage, "r", 2), tmp_path)


def promoted(storage: Storage, run: str, *overrides: str) -> Result:
    """What the command says, with the stored settings of the run."""
    config = CONFIG.model_dump(mode="json")
    storage.write_json(RUN.layout.identity, RUN.model_copy(update={"config": config}).model_dump(mode="json"))
    return CliRunner().invoke(app, ["promote", run, "--root", storage.settings.root, *(f"--set={each}" for each in overrides)])


def test_the_command_promotes_or_says_what_is_wrong(storage: Storage, tmp_path: Path) -> None:
    made(storage, 1)
    home = f"home={tmp_path / 'home'}"
    delivered(storage, tmp_path)
    done = promoted(storage, "r@1", home)
    assert done.exit_code == 0, done.output
    assert "the champion of tiny is run r after 1 updates" in done.output
    assert "in MLflow: models:/nbrl-tiny@champion, version 1" in done.output
    for wrong in ("r@9", "r@", "nothing"):
        assert promoted(storage, wrong, home).exit_code == 1


@pytest.mark.parametrize("where", ["tracking.uri=http://127.0.0.1:9", "home={0}/new", "tracking.uri=sqlite:///{0}/new/mlflow.db"])
def test_a_champion_that_mlflow_cannot_be_told_is_one_sentence(storage: Storage, tmp_path: Path, where: str) -> None:
    made(storage, 1)
    given = where.format(tmp_path)
    done = promoted(storage, "r@1", given)
    assert done.exit_code == 0, done.output
    (said,) = done.stderr.replace("\n", " ").split("nbrl: ")[1:]
    assert f"the champion is recorded, and `nbrl track r --root {storage.settings.root} --set {given}` delivers it" in said
    assert "MLflow cannot be asked: " in said
    assert len(said) < 600
    assert "Max retries" not in said
    assert recorded(storage, "tiny")
    assert not (tmp_path / "new").exists()


def test_promoting_refuses_a_setting_that_it_does_not_read(storage: Storage) -> None:
    made(storage, 1)
    done = promoted(storage, "r@1", "seed=9")
    assert done.exit_code == 1
    assert "only settings of home, tracking act here" in done.stderr
    assert recorded(storage, "tiny") is None
