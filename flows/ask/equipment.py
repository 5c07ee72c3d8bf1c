"""The settings, tools and passages with which a question is answered: of a recipe and `--set`, or of the run that is asked."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import SimulatedSearch, ToolSettings, WebSearch
from nbrl.agent.tools.web import search
from nbrl.flows.ask.endpoint import Endpoint
from nbrl.infra.engine.server import launch, wait
from nbrl.infra.home import Home
from nbrl.infra.manifest import file_sha256
from nbrl.infra.own_code import where_looked
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.csv_table import kind_of
from nbrl.tasks.environments.files import read_passages
from nbrl.tasks.environments.tables import SUFFIXES
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.evaluation.subject import check_began_with, model_folder, subject_of_run
from nbrl.tasks.reward.rules.rule import OF_SESSIONS
from nbrl.tasks.rollout.corpora import open_corpus
from nbrl.tasks.runs.checkpoints import run_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import check_acting, from_settings, load, trusted_config
from nbrl.tasks.runs.run import Run, known_run

ALWAYS = ("agent", "rollout.tools", "sandbox", "home")  # settings that act on every question
SAMPLED = ("evaluate.sampling", "seed")  # where a model is asked
SERVED = ("engine",)  # where the policy of a run is
IDLE = ("sandbox.warm", "sandbox.max_live")
# What a recipe for questions may leave out, and the limits of one question that a user waits for.
USUAL = {
    "iterations": 0,
    "policy": {"path": "."},
    "environments": {"question": {"kind": "world"}},
    "agent": {"max_steps": 20, "cell_timeout_s": 60.0, "deadline_s": 1800.0},
}
SEARCH_KEYS = {"serper": search.SERPER_KEY, "exa": search.EXA_KEY, "firecrawl": search.FIRECRAWL_KEY}


@dataclass(frozen=True)
class Equipped:
    """The settings, and what an environment brings along; `instruction` is what it adds to the system prompt."""

    config: RunConfig
    equipment: Equipment
    endpoint: Endpoint | None = None
    instruction: str = ""


def of_recipe(
    recipe: str, overrides: Sequence[str], corpus: Path | None, attached: bool, played: bool, say: Callable[[str], None]
) -> Equipped:
    """Return the settings of a recipe, or the usual ones, with `overrides`. `played`: recorded actions are, without a model.

    Where they name no tools, there are those that have what they need: search, inspect_file with files `attached`, own ones and
    MCP servers. Raises ConfigError, or InfraError if the passages cannot be indexed.
    """
    check_acting(overrides, ALWAYS if played else (*ALWAYS, *SAMPLED), (*IDLE, *(["agent.max_steps"] if played else [])))
    config = load(recipe, overrides, USUAL) if recipe else from_settings(RunConfig, USUAL, "the options", overrides)
    tools = config.rollout.tools
    if tools.default is None and not tools.abilities:
        searches = corpus is not None or tools.search.engine != "corpus"
        names = ("search",) * searches + ("inspect_file",) * attached + (*tools.own, *tools.mcp)
        tools = tools.model_copy(update={"default": names})
        config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"tools": tools})})
    if corpus is None and tools.needs_corpus():
        raise ConfigError("the tool search needs something to look in; give --corpus FILE or --set rollout.tools.search.engine")
    return Equipped(config, Equipment(_corpus(config, corpus, None, say)))


def _check_asked(storage: Storage, run: Run, config: RunConfig, environment: str) -> None:
    """Raises ConfigError for an environment whose questions have sessions, which begin with these questions only."""
    contents = stored.contents(storage, run.layout.data, config.environments)
    if contents is not None and contents[environment].rules & {*OF_SESSIONS}:
        raise ConfigError(
            f"the tasks of environments.{environment} are done in sessions, which begin with its own questions: `nbrl evaluate` "
            f"asks them, and `nbrl show {run.name}` shows what was done"
        )


@contextmanager
def of_run(
    storage: Storage,
    model: str,
    environment: str | None,
    overrides: Sequence[str],
    corpus: Path | None,
    trust: bool,
    say: Callable[[str], None],
) -> Iterator[Equipped]:
    """Serve the policy that `RUN` or `RUN@N` names while the body runs, with all that it had in an environment.

    Without `environment` that is the run's first; `corpus` replaces its passages. Raises ConfigError, or
    EngineError if the engine does not start.
    """
    acting = (*ALWAYS, *SAMPLED, *SERVED)
    check_acting(overrides, acting, IDLE)
    if (named := run_of(storage, model)) is None:
        known_run(storage, model.partition("@")[0])
        raise ConfigError(f"--run {model} names no run")
    run, updates = named
    config, known = trusted_config(storage, run, overrides, trust, used=acting), known_run(storage, run)
    name = next(iter(config.environments)) if environment is None else environment
    if name not in config.environments:
        raise ConfigError(f"run {run!r} has no environment {name!r}; {did_you_mean(name, list(config.environments))}")
    _check_asked(storage, known, config, name)
    settings, place = config.environments[name], stored.corpora(storage, known.layout.data, config.environments).get(name)
    if corpus is None and place is not None:
        passages = open_corpus(Home(config.home), place.digest, lambda: storage.read_table(*place)["passage"], say)
    else:
        passages = _corpus(config, corpus, settings.tools, say)
    subject = subject_of_run(storage, run, updates)
    check_began_with(config, subject)
    with model_folder(config, subject) as folder:
        server = launch(config.engine, folder, Home(config.home).logs, version=str(subject.updates))
        wait([server])
        try:
            endpoint = Endpoint(server.url, key=server.key, tokenizer=folder, seeded=config.engine.seeded_sampling)
            yield Equipped(config, Equipment(passages, settings.tools), endpoint, settings.prompt)
        finally:
            server.stop()


def _corpus(config: RunConfig, file: Path | None, own: tuple[str, ...] | None, say: Callable[[str], None]) -> Corpus:
    """Return what search looks in, which is nothing without a file. Raises ConfigError if nothing searches it.

    `own` are the tools of the environment, if it has any.
    """
    if file is None:
        return Corpus.in_memory([])
    tools = config.rollout.tools
    default = tools.default if own is None else own
    lists = [*tools.abilities.values(), ("search",) if default is None else default]
    if tools.search.engine != "corpus" or not any("search" in names for names in lists):
        raise ConfigError("no tool searches the corpus; leave out --corpus, or name search among rollout.tools.default")
    return corpus_of(file, Home(config.home), say)


def corpus_of(file: Path, home: Home, say: Callable[[str], None]) -> Corpus:
    """Return the passages of a file, as of an environment's `corpus`, or the lines of a text.

    Many are indexed once, which is reported to `say`. Raises ConfigError or InfraError.
    """
    try:
        digest = f"{file_sha256(file)}{kind_of(file)}"
    except OSError as error:
        raise ConfigError(f"the corpus {file} cannot be read: {error}") from error
    if kind_of(file) in SUFFIXES:
        return open_corpus(home, digest, lambda: read_passages(file, "--corpus")["passage"], say)
    return open_corpus(home, digest, lambda: pa.chunked_array([pa.array(_lines(file), pa.large_string())]), say)


def _lines(file: Path) -> list[str]:
    try:
        # A passage may contain other line separators than a newline.
        passages = [line for line in file.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"the corpus {file} cannot be read as text: {error}") from error
    if not passages:
        raise ConfigError(f"the corpus {file} is empty; give a file with one passage per line")
    return passages


def check_tools(equipped: Equipped, ability: str, recorded: bool) -> None:
    """Raises ConfigError for tools that cannot work, or an ability that the settings do not name.

    A key that the environment lacks is an error unless answers are `recorded`, since all calls of its tool would fail.
    """
    tools, named = equipped.config.rollout.tools, [each.tools or () for each in equipped.config.environments.values()]
    try:
        tools.check_used(name for names in named for name in names)
    except ToolError as error:
        raise ConfigError(f"rollout.tools: {error}") from error
    if missing := next(filter(None, map(where_looked, tools.own.values())), ""):
        raise ConfigError(f"rollout.tools.own names a module that is not there{missing}")
    if isinstance(tools.search, SimulatedSearch):
        raise ConfigError("rollout.tools.search is simulated from a question's answers, which are not known; set another engine")
    if ability and ability not in tools.abilities:
        raise ConfigError(f"rollout.tools has no ability {ability!r}; it has {', '.join(tools.abilities) or 'none'}")
    if not recorded:
        _check_keys(tools, tools.abilities.get(ability, equipped.equipment.tools or tools.default or ()))


def _check_keys(tools: ToolSettings, names: Sequence[str]) -> None:
    needed = {}
    if "search" in names and isinstance(tools.search, WebSearch):
        needed["search"] = SEARCH_KEYS[tools.search.engine]
    if "visual_qa" in names and tools.model is not None and tools.model.key is not None:
        needed["visual_qa"] = tools.model.key
    for tool, variable in needed.items():
        if not os.environ.get(variable, "").strip():
            raise ConfigError(f"the tool {tool} needs a key, and the environment variable {variable} holds none; set it")
