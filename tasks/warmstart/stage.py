"""The agent that demonstrators act as: that of the training for which the policy is made."""

import asyncio
from pathlib import Path
from threading import Event

from nbrl.agent.context.context import check_room
from nbrl.agent.errors import AgentError
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, describe
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment, Library
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load, names
from nbrl.tasks.runs.resume import resumed_config
from nbrl.tasks.runs.run import NAME, find_run
from nbrl.tasks.warmstart.demonstrators.play import Stage


def stage_of(training: RunConfig, environment: str | None, model: Path, cancelled: Event) -> Stage:
    """Raises ConfigError if the model's tokenizer, the tools or the environment do not suit the agent."""
    try:
        tokenizer = ChatTokenizer.load(model, training.agent)
        named = environment or (next(iter(training.environments)) if len(training.environments) == 1 else "")
        tools = asyncio.run(_tools(training, named)) if named else ()
        instruction = training.environments[named].prompt if named else ""
        check_room(tokenizer, training.agent, describe(tools), instruction)
    except AgentError as error:
        raise ConfigError(str(error)) from error
    return Stage(training.agent, tokenizer, tools, instruction, named, cancelled)


def training_of(name: str, storage: Storage) -> RunConfig:
    """The configuration of the recipe of this name, or else of the run of the storage. Raises ConfigError if there is neither."""
    if NAME.fullmatch(name) and name not in names() and find_run(storage, name) is not None:
        return resumed_config(storage, name, [])
    return load(name)


def held_out(training: RunConfig) -> frozenset[str]:
    """The questions on which the training is evaluated: none may be demonstrated. Raises ConfigError if they cannot be had."""
    tables = [each.load(f"environments.{name}").held_out for name, each in training.environments.items()]
    return frozenset(question for table in tables for question in table["question"].to_pylist())


def check_environment(training: RunConfig, environment: str | None) -> None:
    """Raises ConfigError if the training has no such environment."""
    if environment is not None and environment not in training.environments:
        raise ConfigError(
            f"environment {environment!r} is none of the training's; {did_you_mean(environment, list(training.environments))}"
        )


async def _tools(training: RunConfig, environment: str) -> tuple[Tool, ...]:
    """The tools of an environment, to be described; none is called."""
    settings = training.environments[environment]
    passages = settings.load(f"environments.{environment}").corpus["passage"].to_pylist()
    library = Library(training.rollout.tools, {environment: Equipment(Corpus.in_memory(passages), settings.tools)})
    await library.open()
    try:
        return tuple(library.tools(environment, ""))
    finally:
        await library.close()
