"""The model that a warm start begins from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.agent.settings import AgentSettings
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.subject import run_of, subject_of_run
from nbrl.tasks.model_folder.source import PolicySettings, check_hub, content_digest, fetch, is_hub_name, lacks
from nbrl.tasks.runs.checkpoints import checkpoint_folder
from nbrl.tasks.runs.gpu_memory import check_learns, check_reads
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.warmstart.settings import WarmstartSettings


def start_digest(start: str, storage: Storage) -> str:
    """What identifies the model. Raises ConfigError if there is none of this name."""
    if (run := run_of(storage, start)) is not None:
        return subject_of_run(storage, *run).digest
    return content_digest(fetch(_policy(start)))


def check_start(settings: WarmstartSettings, agent: AgentSettings, storage: Storage) -> None:
    """Raises ConfigError unless there is a model to start from, and it suits agent and learner. Nothing is fetched.

    A model of the hub, and one that a run has since moved, are not looked into.
    """
    if settings.start is None:
        return
    if (run := run_of(storage, settings.start)) is not None:
        subject_of_run(storage, *run)
        policy = resumed_config(storage, run[0], []).policy
        if not Path(policy.path).is_dir():
            return
    else:
        policy = _policy(settings.start)
    if check_reads(policy, agent):
        check_learns(policy.path, settings.update)


@contextmanager
def start_folder(start: str, storage: Storage, home: Path) -> Iterator[Path]:
    """Its Hugging Face folder; while the body runs, nothing deletes it."""
    if (run := run_of(storage, start)) is not None:
        with checkpoint_folder(storage, home, *run) as folder:
            yield folder
    else:
        yield fetch(_policy(start))


def _policy(start: str) -> PolicySettings:
    folder = expanded(start)
    if folder.is_dir():
        if fault := lacks(folder):
            raise ConfigError(f"{start} {fault}")
        return PolicySettings(path=str(folder))
    if is_hub_name(start):
        settings = PolicySettings(path=start)
        if doubt := check_hub(settings):
            why = doubt.removeprefix("policy.path ")
            raise ConfigError(f"{why}; give a folder instead, or `nbrl model fetch {start}` where the hub can be reached")
        return settings
    raise ConfigError(
        f"there is no model {start!r}: give a Hugging Face folder, owner/name on the hub, or RUN or RUN@N of the root"
    )
