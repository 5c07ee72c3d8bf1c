"""The policy of a run as one to ask: its engine, and the settings, tools and passages with which it was trained."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from nbrl.agent.errors import RecordingError
from nbrl.agent.notebook import recording
from nbrl.agent.policy import Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import SimulatedSearch, ToolSettings
from nbrl.agent.trajectory import Trajectory
from nbrl.flows.ask.endpoint import Endpoint
from nbrl.flows.display.listing import find
from nbrl.infra.engine.server import launch, wait
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.evaluation.subject import check_began_with, model_folder, run_of, subject_of_run
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.runs.recipes import trusted_config
from nbrl.tasks.runs.run import known_run

USED = ("home", "rollout.tools", "engine", "sandbox")  # settings of the run that act here


@dataclass(frozen=True)
class TrainedPolicy:
    """`instruction` is what the environment adds to the system prompt."""

    endpoint: Endpoint
    agent: AgentSettings
    sampling: Sampling
    tools: ToolSettings
    equipment: Equipment
    instruction: str


@contextmanager
def trained(
    storage: Storage, model: str, environment: str | None, say: Callable[[str], None], trust: bool = False
) -> Iterator[TrainedPolicy]:
    """Serve the policy that `RUN` or `RUN@N` names while the body runs, with all that it had in an environment.

    Without `environment` that is the run's first. Raises ConfigError, or EngineError if the engine does not start.
    """
    if (named := run_of(storage, model)) is None:
        known_run(storage, model.partition("@")[0])
        raise ConfigError(f"--run {model} names no run")
    run, updates = named
    config, known = trusted_config(storage, run, (), trust, used=USED), known_run(storage, run)
    name = next(iter(config.environments)) if environment is None else environment
    if name not in config.environments:
        raise ConfigError(f"run {run!r} has no environment {name!r}; {did_you_mean(name, list(config.environments))}")
    if isinstance(config.rollout.tools.search, SimulatedSearch):
        raise ConfigError(
            f"run {run!r} simulates search from a question's answers, which nobody knows here; give --tool-settings"
        )
    home, settings = Home(config.home), config.environments[name]
    place = stored.corpora(storage, known.layout.data, config.environments).get(name)
    corpus = Corpus.in_memory([])
    if place is not None:
        corpus = open_corpus(home, place.digest, partial(_passages, storage, place), say)
    subject = subject_of_run(storage, run, updates)
    check_began_with(config, subject)
    with model_folder(config, subject) as folder:
        server = launch(config.engine, folder, home.logs, version=str(subject.updates))
        wait([server])
        try:
            endpoint = Endpoint(server.url, key=server.key, tokenizer=folder, seeded=config.engine.seeded_sampling)
            equipment = Equipment(corpus, settings.tools)
            yield TrainedPolicy(
                endpoint, config.agent, config.evaluate.sampling, config.rollout.tools, equipment, settings.prompt
            )
        finally:
            server.stop()


def _passages(storage: Storage, place: stored.Place) -> pa.ChunkedArray:
    return storage.read_table(*place)["passage"]


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
    if not any(step.kind == "cell" for step in trajectory.steps):
        raise ConfigError(f"the recording {name} has no action; there is nothing to replay")
    return trajectory


def _read(path: Path) -> Trajectory:
    try:
        return recording.read(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the recording {path} cannot be read: {error.strerror}") from error
    except RecordingError as error:
        raise ConfigError(f"the recording {path} cannot be replayed: {error}") from error


def verdict(recorded: Trajectory, again: Trajectory) -> str:
    """Return how the replay of a trajectory compares with it."""
    changed = recording.changed(recorded, again)
    if not changed:
        return f"all {len(recorded.steps)} steps came out as they were recorded"
    steps = ", ".join(str(index + 1) for index in changed[:10])
    return f"{len(changed)} of {len(recorded.steps)} recorded steps came out otherwise: {steps}"
