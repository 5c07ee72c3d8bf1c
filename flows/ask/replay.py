"""A saved trajectory that is played again."""

from pathlib import Path

from nbrl.agent.errors import RecordingError
from nbrl.agent.notebook import recording
from nbrl.agent.trajectory import Trajectory
from nbrl.flows.display.listing import find
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError


def load(name: str, root: str) -> Trajectory:
    """Load a notebook or JSON file that `nbrl agent` wrote, or the newest RUN/TRAJECTORY of this name in the storage at `root`.

    Raises ConfigError if there is none, or if it has no action.
    """
    run, _, identity = name.partition("/")
    if (path := Path(name)).is_file():
        trajectory = _read(path)
    elif identity and path.suffix not in (".ipynb", ".json"):
        trajectory = find(Storage(StorageSettings(root=root)), run, identity)[-1][1]
    else:
        raise ConfigError(f"there is no file {name} to replay; name a saved notebook, a trajectory as JSON, or RUN/TRAJECTORY")
    if not cells(trajectory):
        raise ConfigError(f"the recording {name} has no action; there is nothing to replay")
    return trajectory


def _read(path: Path) -> Trajectory:
    try:
        return recording.read(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the recording {path} cannot be read: {error.strerror}") from error
    except RecordingError as error:
        raise ConfigError(f"the recording {path} cannot be replayed: {error}") from error


def cells(trajectory: Trajectory) -> int:
    """Return the number of steps that ran a cell."""
    return sum(step.kind == "cell" for step in trajectory.steps)


def verdict(recorded: Trajectory, again: Trajectory) -> str:
    """Return how the replay of a trajectory compares with it."""
    changed = recording.changed(recorded, again)
    if not changed:
        return f"all {len(recorded.steps)} steps came out as they were recorded"
    steps = ", ".join(str(index + 1) for index in changed[:10])
    return f"{len(changed)} of {len(recorded.steps)} recorded steps came out otherwise: {steps}"
