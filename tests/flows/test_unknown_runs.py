"""A name that nothing has: where it was looked for, and which names there are."""

from pathlib import Path

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EVALUATIONS
from nbrl.tasks.runs.checkpoints import folder_of
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.tracking.promote import promote
from tests.flows.typed import nbrl
from tests.tasks.synced import RUN


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """One run, `small`, and one evaluation, `small-000003`."""
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    run = RUN.model_copy(update={"name": "small"})
    evaluation = RUN.model_copy(update={"name": "small-000003", "kind": EVALUATIONS})
    for each in (run, evaluation):
        storage.create_json(each.layout.identity, each.model_dump(mode="json"))
    return storage


def served(storage: Storage, home: Path, model: str) -> str:
    with pytest.raises(ConfigError) as error, folder_of(storage, home, model):
        pass
    return str(error.value)


def test_serving_an_unknown_model_says_where_it_was_looked_for_and_what_is_near(storage: Storage, tmp_path: Path) -> None:
    root = storage.settings.root
    assert (
        served(storage, tmp_path, "smal@2") == f"there is no folder 'smal@2', and there is no run 'smal' in {root}; did you mean "
        "'small'?"
    )
    assert served(storage, tmp_path, "nope").endswith(f"there is no run 'nope' in {root}; there are: small.")
    assert served(storage, tmp_path, "./smal") == "there is no folder './smal'; correct the path, or give the name of a run"


def test_an_unknown_run_is_told_with_the_root_and_names(storage: Storage, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^there is no run 'smol' in {storage.settings.root}; did you mean 'small'\?$"):
        known_run(storage, "smol")
    empty = Storage(StorageSettings(root=str(tmp_path / "empty")))
    with pytest.raises(ConfigError, match=r"there is no run 'a' in .*/empty, nor any other; give another --root, or begin one"):
        known_run(empty, "a")


def test_an_evaluation_is_not_promoted_and_no_run_of_its_name_is_advised(storage: Storage) -> None:
    with pytest.raises(ConfigError) as error:
        promote(storage, "small-000003", None)
    root = storage.settings.root
    assert str(error.value) == f"'small-000003' in {root} is an evaluation, and this is for a run; did you mean 'small'?"


@pytest.mark.process
@pytest.mark.parametrize("command", ["logs", "stop"])
def test_logs_and_stop_look_among_runs_and_evaluations(storage: Storage, command: str) -> None:
    done = nbrl(command, "small-00003", "--root", storage.settings.root)
    assert done.returncode == 1
    assert f"there is no run or evaluation 'small-00003' in {storage.settings.root}; did you mean 'small-000003'?" in done.stderr
