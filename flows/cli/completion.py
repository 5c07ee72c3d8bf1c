"""Completions in the shell. To be quick, each function imports only what it needs and uses no network.

The shell puts what is offered on the line as it is: of what others wrote only words are offered that mean nothing to a shell.
"""

import os
import shlex
from pathlib import Path

import typer

from nbrl.infra.paths import opened
from nbrl.tasks.layout.runs import NAME, EvaluationLayout, RunLayout

ROOT = ".nbrl/storage"
RECIPES = Path(__file__).resolve().parents[2] / "infra" / "recipes"


def recipes(typed: str) -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem.startswith(typed))


def data_sets(typed: str) -> list[str]:
    from nbrl.tasks.environments.datasets.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(typed)]


def fetched_models(typed: str) -> list[str]:
    from nbrl.tasks.model_folder.fetch.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(typed)]


def runs(context: typer.Context, typed: str) -> list[str]:
    """Runs of a local storage root; those of S3 are not listed."""
    return _folders(context, RunLayout("*").identity, typed)


def runs_and_evaluations(context: typer.Context, typed: str) -> list[str]:
    return sorted({*runs(context, typed), *_folders(context, EvaluationLayout("*").data.folder, typed)})


def _folders(context: typer.Context, pattern: str, typed: str) -> list[str]:
    """Return names of the folders with a file that matches `pattern`, under the root of the command line so far."""
    names = {path.parent.name for path in _root(context).glob(pattern)}
    return sorted(name for name in names if NAME.fullmatch(name) and name.startswith(typed))


def _root(context: typer.Context) -> Path:
    """Return the storage root of the command line so far."""
    overrides = [one.partition("=")[2] for one in context.params.get("set_") or () if one.startswith("storage.root=")]
    return Path(overrides[-1] if overrides else context.params.get("root") or ROOT)


def recipe_keys(typed: str) -> list[str]:
    """Return keys that `--set` accepts for a recipe."""
    from nbrl.tasks.runs.config import RunConfig  # takes half a second
    from nbrl.tasks.runs.decisive import dotted

    return [f"{key}=" for key in dotted(RunConfig) if key.startswith(typed)]


def warmstart_keys(typed: str) -> list[str]:
    from nbrl.tasks.runs.decisive import dotted
    from nbrl.tasks.warmstart.settings import WarmstartSettings

    keys = [key for key in dotted(WarmstartSettings) if not key.startswith("phases.")]
    return [f"{key}=" for key in keys if key.startswith(typed)]


def warmstarts(typed: str) -> list[str]:
    return sorted(path.stem for path in (RECIPES / "warmstart").glob("*.yaml") if path.stem.startswith(typed))


def prepare_keys(typed: str) -> list[str]:
    """Return keys that `--set` accepts for a preparation, without its lists of files."""
    from nbrl.tasks.prepare.settings import PrepareSettings
    from nbrl.tasks.runs.decisive import dotted

    keys = [key for key in dotted(PrepareSettings) if not key.startswith(("sources.", "evaluation."))]
    return [f"{key}=" for key in keys if key.startswith(typed)]


def variables(typed: str) -> list[str]:
    return sorted(name for name in os.environ if name.startswith(typed) and "KEY" in name)


def built_in_tools(typed: str) -> list[str]:
    from nbrl.agent.tools.settings import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(typed)]


def models(context: typer.Context, typed: str) -> list[str]:
    """Runs of a local storage root, each also at its checkpoints."""
    found = []
    for run in runs(context, typed.partition("@")[0]):
        found.append(run)
        numbers = [path.name.partition("-")[0] for path in _root(context).glob(f"{RunLayout(run).checkpoints}/*")]
        found += [f"{run}@{int(number)}" for number in numbers if number.isdecimal()]
    return sorted(name for name in found if name.startswith(typed))


def compared(context: typer.Context, typed: str) -> list[str]:
    """Evaluations, and runs, each also at the updates after which it was evaluated."""
    evaluations = _folders(context, EvaluationLayout("*").data.folder, typed)
    found = set(runs(context, typed.partition("@")[0])) | set(evaluations)
    for run in runs(context, typed.partition("@")[0]):
        found |= {
            f"{run}@{int(path.name)}" for path in _root(context).glob(f"{RunLayout(run).evaluations}/*") if path.name.isdecimal()
        }
    return sorted(name for name in found if name.startswith(typed))


def statuses(typed: str) -> list[str]:
    from nbrl.agent.trajectory import Status

    return [status.value for status in Status if status.startswith(typed)]


def iterations(context: typer.Context, typed: str) -> list[str]:
    """Return the iterations of the run of the command line so far that have trajectories, counted from 1."""
    name = _named(context)
    found = {int(path.name) + 1 for path in _root(context).glob(f"{RunLayout(name).iterations}/*") if path.name.isdecimal()}
    return [str(number) for number in sorted(found) if str(number).startswith(typed)]


def abilities(context: typer.Context, typed: str) -> list[str]:
    return _values(context, "ability", typed)


def environments(context: typer.Context, typed: str) -> list[str]:
    return _values(context, "environment", typed)


def _named(context: typer.Context) -> str:
    """Return the run or evaluation of the command line so far; empty if there is none."""
    # Behind an option that still lacks its value, what precedes it is not yet taken for arguments.
    words = [context.params.get("trajectory"), *context.args]
    return next((word for word in words if word), "").partition("@")[0]


def _values(context: typer.Context, column: str, typed: str) -> list[str]:
    """Return the values of a column of the questions of the run or evaluation that the command line so far names."""
    import pyarrow as pa

    from nbrl.infra.arrow_files import read_parquet

    found: list[object] = []
    name = _named(context)
    for layout in (RunLayout(name), EvaluationLayout(name)):
        for path in _root(context).glob(f"{layout.data.folder}/*.parquet"):
            try:
                with opened(path, follow=False) as file:
                    found += read_parquet(file, [column])[column].unique().to_pylist()
            except (pa.ArrowException, OSError, ValueError, LookupError):  # damaged
                continue
    return sorted({value for value in found if isinstance(value, str) and value.startswith(typed) and _is_plain(value)})


def _is_plain(word: str) -> bool:
    """Return whether a word is no option and the same with quotes and without."""
    return shlex.quote(word) == word and not word.startswith("-")
