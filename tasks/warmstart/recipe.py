"""Reads the recipe of a warm start."""

import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from nbrl.agent.formats.messages import conversation
from nbrl.agent.trajectory import to_table
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.addresses import SCHEME, meant, on_disk
from nbrl.tasks.environments.tables import SUFFIXES as TABLES
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.runs.checkpoints import run_of
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.recipe_tree import RecipeTree, anchor
from nbrl.tasks.runs.recipes import FOLDER as RECIPES
from nbrl.tasks.runs.recipes import from_settings
from nbrl.tasks.runs.recipes import names as training_recipes
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.warmstart.settings import OF_A_RUN, WarmstartSettings
from nbrl.tasks.warmstart.sources.chat import holds_conversations
from nbrl.tasks.warmstart.sources.recorded import SUFFIXES
from nbrl.tasks.warmstart.sources.successes import successes

FOLDER = RECIPES / "warmstart"
PATHS = ("phases.*.demonstrations.*.path", "phases.*.demonstrations.*.root")


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


@dataclass(frozen=True)
class WarmstartArguments:
    """The arguments of a command line: a recipe, and replacements of its model to start from, its training and all its phases."""

    recipe: str | None = None
    start: str | None = None
    training: str | None = None
    demonstrations: str | None = None


def load(given: WarmstartArguments, overrides: Iterable[str], storage: Storage) -> WarmstartSettings:
    """Return the settings of a recipe with `a.b=c` overrides. Runs lie in `storage`.

    Paths in the recipe are relative to its folder, those of overrides to the current folder. Raises ConfigError naming file or
    override, key and remedy.
    """
    flags = {
        "--from": given.start,
        "--recipe": given.recipe,
        "--training": given.training,
        "--demonstrations": given.demonstrations,
    }
    for flag, text in flags.items():
        if text is not None and not text.strip():
            raise ConfigError(f"{flag} is empty; give what it names, or leave it out")
    if given.demonstrations is not None and given.start is None and given.recipe is None:
        raise ConfigError("say which model learns the demonstrations: --from MODEL, or --recipe tiny, which makes a tiny one")
    path = _found(given.recipe or ("any" if given.start else "tiny"), Path.cwd())
    values = RecipeTree.read(path, _found).settings
    _anchor(values, path.parent)
    if given.start is not None:
        values.pop("fresh", None)
        values["start"] = given.start
    if given.training is not None:
        values["training"] = _training(given.training, storage)
    elif given.start is not None and given.recipe is None and (run := run_of(storage, given.start)) is not None:
        values["training"] = OF_A_RUN + run[0]
    overrides = list(overrides)
    if "training" not in values and not any(override.startswith("training=") for override in overrides):
        raise ConfigError("name the training whose agent the model learns to be: --training with the recipe that follows")
    if given.demonstrations is not None:
        source = source_of(given.demonstrations, storage)
        values["phases"] = {"demonstrations": {"demonstrations": {source["kind"]: source}}}
    return from_settings(WarmstartSettings, values, str(path), overrides)


def _training(named: str, storage: Storage) -> str:
    """Return the setting for `--training`: a recipe, or a run of the storage. Raises ConfigError if it may be either."""
    run = run_of(storage, named)
    if run is None:
        path = expanded(named)
        return str(path.absolute()) if os.path.isfile(path) else named
    if named in training_recipes():
        raise ConfigError(
            f"--training {named}: there are a recipe and a run of this name; give {OF_A_RUN}{named} for the run, or --set "
            f"training={named} for the recipe"
        )
    return OF_A_RUN + run[0]


def source_of(named: str, storage: Storage) -> dict[str, Any]:
    """Return the source of demonstrations that a word, a run's name or a path means, as settings. Raises ConfigError for none."""
    path = expanded(named)
    if SCHEME in named:
        with on_disk(meant(named), "--demonstrations", (*TABLES, *SUFFIXES)) as copy:
            return {"kind": "chat" if holds_conversations(copy) else "recorded", "path": named}
    if named == "world":
        return {"kind": named}
    if run_of(storage, named) is not None:
        return {"kind": "run", "name": named, "root": storage.settings.root}
    if holds_conversations(path):
        return {"kind": "chat", "path": str(path.absolute())}
    if os.path.exists(path) or path.suffix in SUFFIXES:
        return {"kind": "recorded", "path": str(path.absolute())}
    raise ConfigError(
        f"there are no demonstrations {named!r}: give `world`, a file or folder of trajectories (.parquet, .ipynb, .json), "
        "conversations (.jsonl, or .json and .parquet with messages), the address of such files, or the name of a run of the root"
    )


def _found(recipe: str, folder: Path) -> Path:
    named, path = FOLDER / f"{recipe}.yaml", Path(folder, expanded(recipe)).absolute()
    with suppress(OSError, ValueError):  # a name that cannot be a path
        for place in (named, path):
            if place.is_file():
                return place
    hint = did_you_mean(recipe, names(), f"there are: {', '.join(names())}; or give the path of a YAML file")
    raise ConfigError(f"there is no recipe {recipe!r} of a warm start; {hint}")


def _anchor(values: dict[str, Any], folder: Path) -> None:
    """Make the paths absolute: they are meant from `folder`. A name of a recipe, of a model of the hub or of a run stays."""
    named = {"training": os.path.isfile, "start": os.path.exists}
    files = [
        key
        for key, is_there in named.items()
        if isinstance(text := values.get(key), str) and is_there(Path(folder, expanded(text)))
    ]
    anchor(values, folder, [*PATHS, *files])


def write(storage: Storage, run: str, best: int, file: Path) -> int:
    """Write up to `best` right trajectories of each training question of a run, and return their number. Raises ConfigError."""
    if file.suffix not in (".parquet", ".jsonl"):
        raise ConfigError(f"{file} must end in .parquet, for trajectories with their tokens, or in .jsonl, for conversations")
    if os.path.lexists(file):
        raise ConfigError(f"{file} exists; name a file that does not, nothing is overwritten")
    trajectories = successes(storage, run, best)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as beside:
            made = Path(beside) / file.name
            if file.suffix == ".parquet":
                pq.write_table(to_table(trajectories), made)
            else:
                grammar = stored_config(storage, known_run(storage, run)).agent.grammar
                rows = (json.dumps(conversation(each, grammar, {}), ensure_ascii=False) for each in trajectories)
                made.write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
            os.link(made, file)  # fails where there is something, a link too
    except OSError as error:
        raise ConfigError(f"{file} could not be written: {error.strerror}; name another") from error
    return len(trajectories)
