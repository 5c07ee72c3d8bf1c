"""Makes a checkpoint the champion of its recipe: on the storage, which is the truth, and then as an alias in MLflow."""

import tempfile
import time
from contextlib import suppress
from pathlib import Path

from nbrl.infra.errors import DamagedError, MissingError, ServerError, StorageError, shortened
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking, TrackingSettings
from nbrl.infra.tracking_address import check_reachable, missing_database
from nbrl.infra.tracking_models import Version
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.layout.runs import champion_of
from nbrl.tasks.runs.checkpoints import checkpoint_folder, used
from nbrl.tasks.runs.epochs import user
from nbrl.tasks.runs.history import made_in, read_record
from nbrl.tasks.runs.pins import Champion, missing, recorded, weights_digest
from nbrl.tasks.runs.pins import champion as champion_of_recipe
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.tracking.checkpoints import CHAMPION, UPDATES, Checkpoints, registered_name
from nbrl.tasks.tracking.parameters import RUN_ID, identity
from nbrl.tasks.tracking.steps import Steps


def promote(storage: Storage, name: str, updates: int | None) -> Champion:
    """Make the run's checkpoint after `updates` updates, by default the newest, the champion of the run's recipe.

    Every file of its model is read and compared with what was written; a storage in a cloud is downloaded for it. From then on
    retention keeps it. Raises ConfigError where it is not there or not whole, and changes nothing then.
    """
    run = known_run(storage, name)
    with used(storage, name, updates) as folder:  # while it is read, training does not delete it
        champion = _whole(storage, run, folder)
        with suppress(DamagedError):  # what it named is unknown, and so is what was before
            if (current := recorded(storage, run.recipe)) is not None:
                before = current.before if current.checkpoint == folder else current.model_copy(update={"before": None})
                champion = champion.model_copy(update={"before": before})
        storage.write_json(champion_of(run.recipe), champion.model_dump(mode="json"))
    return champion


def former_of(storage: Storage, recipe: str) -> tuple[str, int]:
    """Return the run and the updates of the champion that a recipe had before the last promotion; it becomes the champion again
    when it is promoted.

    Raises ConfigError where there was none.
    """
    current = champion_of_recipe(storage, recipe)
    if current.before is None:
        raise ConfigError(
            f"the recipe {recipe!r} had no champion before run {current.run} after {current.updates} updates; promote another "
            "with `nbrl promote RUN@N`"
        )
    return current.before.run, current.before.updates


def _whole(storage: Storage, run: Run, folder: str) -> Champion:
    """Return the checkpoint as champion, after a look at each file of its model."""
    updates = updates_of(folder)
    try:
        weights = weights_digest(storage, folder)
        with tempfile.TemporaryDirectory() as scratch, checkpoint_folder(storage, Path(scratch), run.name, updates):
            gone = missing(storage, folder)
    except (MissingError, DamagedError) as error:
        raise _refused(run, updates, str(error)) from error
    if gone:
        raise _refused(run, updates, f"{storage.uri(gone[0])} is gone")
    record = read_record(storage, run, made_in(storage, run, updates))
    if record is not None and record.weights != weights:
        raise _refused(run, updates, f"{storage.uri(folder)} holds other weights than the update made")
    return Champion(
        recipe=run.recipe,
        run=run.name,
        run_id=run.run_id,
        updates=updates,
        checkpoint=folder,
        weights=weights,
        promoted=time.time(),
        user=user(),
    )


def _refused(run: Run, updates: int, why: str) -> ConfigError:
    return ConfigError(
        f"checkpoint {updates} of run {run.name!r} cannot be promoted: {why}; promote another with `nbrl promote {run.name}@N`"
    )


def show_champion(storage: Storage, champion: Champion, settings: TrackingSettings, home: Home) -> str:
    """Give the champion its alias in MLflow's registry; returns its address and version there.

    Raises ServerError where MLflow cannot be asked, or does not have the checkpoint yet; the storage has the champion all the
    same. No database is made.
    """
    run = known_run(storage, champion.run)
    try:
        version = _with_alias(storage, run, settings, home)
    except StorageError:
        raise
    except Exception as error:
        raise ServerError(f"MLflow cannot be asked: {shortened(error)}") from error
    tags = version.tags if version else {}
    if version is None or (tags.get(RUN_ID), tags.get(UPDATES)) != (champion.run_id, str(champion.updates)):
        raise ServerError("MLflow does not have this checkpoint yet")
    return f"models:/{registered_name(run.recipe)}@{CHAMPION}, version {version.number}"


def _with_alias(storage: Storage, run: Run, settings: TrackingSettings, home: Home) -> Version | None:
    """Return the version that has the alias, after it was set where MLflow has the run."""
    if (database := missing_database(settings.uri, home)) is not None:
        raise ServerError(f"there is no MLflow database in {database.parent}")
    if settings.uri is not None:
        check_reachable(settings.uri)
    tracking = Tracking(settings, home)
    if tracking.client.get_experiment_by_name(settings.experiment) is None:  # asking for a run would make one
        return None
    if not tracking.find_run(run.name, identity(run)):
        return None
    checkpoints = Checkpoints(storage, run, tracking)
    checkpoints.begin()
    checkpoints.register(_steps(storage, run).policies)
    versions = tracking.models.versions(registered_name(run.recipe))
    return next((each for each in versions if CHAMPION in each.aliases), None)


def _steps(storage: Storage, run: Run) -> Steps:
    steps = Steps(run)
    while (record := read_record(storage, run, steps.count)) is not None:
        steps.add(record)
    return steps
