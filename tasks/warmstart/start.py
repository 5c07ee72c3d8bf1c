"""The model that a warm start begins from."""

import asyncio
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from nbrl.agent.context.context import check_room
from nbrl.agent.errors import AgentError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, describe
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment, Library
from nbrl.infra.paths import expanded
from nbrl.infra.process.child import kept
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.evaluation.subject import subject_of_run
from nbrl.tasks.model_folder.source import PolicySettings, check_hub, content_digest, fetch, is_hub_name, lacks
from nbrl.tasks.runs.checkpoints import checkpoint_folder, run_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.gpu_memory import check_learns, check_reads
from nbrl.tasks.runs.recipes import load, resumed_config, trusted_config
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.settings import WarmstartSettings


def start_digest(start: str, storage: Storage) -> str:
    """Return what identifies the model. Raises ConfigError if there is none of this name."""
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
    """Yield its Hugging Face folder; while the body runs, nothing deletes it."""
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


def stages_of(
    training: RunConfig, names: Set[str | None], loaded: Mapping[str, Tables], model: Path, cancelled: Event
) -> dict[str | None, DemonstrationAgent]:
    """Return a stage for each of the environments' `names` in sources; None is the only environment, and of several none.

    `loaded` is what the environments gave. Raises ConfigError if the model's tokenizer, the tools or an environment do not suit
    the agent.
    """
    try:
        tokenizer = ChatTokenizer.load(model, training.agent)
        only = next(iter(training.environments)) if len(training.environments) == 1 else ""
        return {name: _stage(training, name or only, loaded, tokenizer, cancelled) for name in names}
    except AgentError as error:
        raise ConfigError(str(error)) from error


def _stage(
    training: RunConfig, environment: str, loaded: Mapping[str, Tables], tokenizer: ChatTokenizer, cancelled: Event
) -> DemonstrationAgent:
    tools = asyncio.run(_tools(training, environment, loaded[environment])) if environment else ()
    instruction = training.environments[environment].prompt if environment else ""
    check_room(tokenizer, training.agent, describe(tools), instruction)
    return DemonstrationAgent(training.agent, tokenizer, tools, instruction, environment, cancelled=cancelled)


def training_of(settings: WarmstartSettings, storage: Storage, trust: bool = False) -> RunConfig:
    """Return the configuration of the training's recipe or run. Raises ConfigError if there is none.

    The environments and tools of a run act here, and its questions are read again: see trust.py.
    """
    if (run := settings.training_run) is not None:
        return trusted_config(storage, run, [], trust, used=("environments", "rollout.tools"), anew=True)
    return load(settings.training)


def held_out(loaded: Mapping[str, Tables]) -> frozenset[str]:
    """Return the questions on which the training is evaluated: none may be demonstrated."""
    return frozenset(question for tables in loaded.values() for question in tables.held_out["question"].to_pylist())


def check_environments(settings: WarmstartSettings, training: RunConfig) -> None:
    """Raises ConfigError if a source names an environment that the training does not have."""
    for place, source in settings.sources.items():
        if source.environment is not None and source.environment not in training.environments:
            others = did_you_mean(source.environment, list(training.environments))
            raise ConfigError(f"{place}.environment {source.environment!r} is none of the training's; {others}")


async def _tools(training: RunConfig, environment: str, tables: Tables) -> tuple[Tool, ...]:
    """Return the tools of an environment, to be described; none is called."""
    passages, settings = tables.corpus["passage"].to_pylist(), training.environments[environment]
    equipment = {environment: Equipment(Corpus.in_memory(passages), settings.tools)}
    library = Library(training.rollout.tools, equipment, keep=kept)
    await library.open()
    try:
        return tuple(library.tools(environment, ""))
    finally:
        await library.close()
