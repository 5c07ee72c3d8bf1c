"""`nbrl export`, and the home and the storage of commands."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.display.terminal import out
from nbrl.infra.home import HOME, storage_of

if TYPE_CHECKING:
    from nbrl.infra.storage import Storage

Model = TypeVar("Model", bound=BaseModel)
Root = Annotated[
    str | None,
    typer.Option(
        help="another storage than the home's: a folder, or an address such as s3://bucket/prefix",
        show_default="storage in the home",
    ),
]
Recipe = Annotated[str, typer.Argument(help="a recipe's name, or the path of a YAML file", autocompletion=completion.recipes)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="override a setting, e.g. update.lr=1e-4", autocompletion=completion.recipe_keys
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="stop another process that trains this run, on any machine, and continue here")
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=1,
        max=65535,
        metavar="PORT",
        help="serve the run's newest metrics for Prometheus at http://127.0.0.1:PORT/metrics while it trains",
    ),
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="let a run that was begun elsewhere start the programs, and ask the servers, that its settings name"
    ),
]
Home = Annotated[
    str | None, typer.Option(help="folder of the storage, and of the local servers' state and logs", show_default=HOME)
]


def export(
    run: Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)],
    folder: Annotated[Path, typer.Argument(help="where to write the model folder, or the file; nothing is overwritten")],
    checkpoint: Annotated[int | None, typer.Option(help="number of updates of the checkpoint; by default the newest")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="convert the weights; by default they are copied unchanged"),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="split the weights into files of at most this size, e.g. 5GB")
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="write only what LoRA trained, in peft's format")] = False,
    trajectories: Annotated[
        Literal["atif", "messages", "otel"] | None,
        typer.Option(help="write the trajectories in this format instead, one in each line: see docs/formats.md"),
    ] = None,
    iteration: Annotated[int | None, typer.Option(min=1, metavar="N", help="only those of this iteration")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="only those of held-out evaluations")] = False,
    home: Home = None,
    root: Root = None,
) -> None:
    """Write a run's policy as a Hugging Face folder: weights, tokenizer, chat template, configurations; or its trajectories."""
    from nbrl.flows.cli.export import closing
    from nbrl.flows.cli.export import export as write
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.run import checked_name

    on_stop(lambda: "nothing was written")
    of_weights = {
        "--checkpoint": checkpoint is not None,
        "--dtype": dtype,
        "--max-shard-size": max_shard_size,
        "--adapter": adapter,
    }
    of_lists = {"--iteration": iteration, "--held-out": held_out}
    idle = of_lists if trajectories is None else of_weights
    if given := [option for option, value in idle.items() if value]:
        why = "without --trajectories" if trajectories is None else "beside --trajectories, which writes no weights"
        raise ConfigError(f"{given[0]} does nothing {why}; leave it out")
    if trajectories is not None:
        from nbrl.flows.cli.export_trajectories import export_trajectories
        from nbrl.flows.display.wanted import Wanted

        wanted = Wanted(iteration=iteration, held_out=held_out)
        count = export_trajectories(read_alone(home, root), checked_name(run), folder, trajectories, wanted)
        out.print(f"wrote {count} trajectories of {run} to {folder}", markup=False, highlight=False, soft_wrap=True)
        return
    source = write(read_alone(home, root), checked_name(run), checkpoint, folder, dtype, max_shard_size, adapter)
    out.print(closing(folder, source, adapter), markup=False, highlight=False, soft_wrap=True)


def home_at(home: str | None) -> str:
    """Return the home that `--home` names, or the usual one. Raises ConfigError if it is empty."""
    from nbrl.infra.paths import expanded
    from nbrl.tasks.errors import ConfigError

    if home is not None and not home.strip():
        raise ConfigError("--home is empty; give a folder, or leave it out")
    return HOME if home is None else str(expanded(home).absolute())


def root_at(home: str | None, root: str | None) -> str:
    """Return the storage root that `--root` names, or that of the home. Raises ConfigError if either is empty."""
    from nbrl.tasks.errors import ConfigError

    if root is not None and not root.strip():
        raise ConfigError("--root is empty; give a folder or s3://bucket/prefix, or leave it out")
    return storage_of(home_at(home)) if root is None else root


def storage_at(home: str | None, root: str | None) -> "Storage":
    """Return the storage that the options name. Raises ConfigError as `root_at` does."""
    from nbrl.infra.storage import Storage, StorageSettings

    return Storage(StorageSettings(root=root_at(home, root)))


def read_alone(home: str | None, root: str | None) -> "Storage":
    """Return the storage of a command that uses nothing else of a home. Raises ConfigError as `root_at` does, and for both."""
    from nbrl.tasks.errors import ConfigError

    if home is not None and root is not None:
        raise ConfigError("--home changes nothing beside --root, which names the storage; leave one of them out")
    return storage_at(home, root)


def overrides_of(home: str | None, overrides: Iterable[str] | None) -> list[str]:
    """Return the overrides of `--home` and `--set`. Raises ConfigError where both name a home, or `--home` none."""
    from nbrl.tasks.runs.recipes import with_home

    return [*with_home(None if home is None else home_at(home), overrides or ())]


def request_of(context: typer.Context, model: type[Model], **more: Any) -> Model:
    """Return a request made of the options of a command that have the names of its fields, and of `--set`."""
    given = {name: context.params.get(name) for name in model.model_fields} | {"overrides": tuple(context.params["set_"] or ())}
    return model(**{name: value for name, value in given.items() if value is not None} | more)


def home_option(home: str) -> str:
    """Return the option that names this home; empty for the usual one."""
    return "" if home == HOME else f" --home {shlex.quote(home)}"


def root_flag(config: Any) -> str:
    """Return the flag with which `nbrl show` finds this run's storage."""
    return home_flag(config) if config.storage.root == storage_of(config.home) else config.storage.option


def home_flag(config: Any) -> str:
    """Return the flags with which `nbrl ui` shows this run's pages."""
    elsewhere = config.storage.root != storage_of(config.home)
    return home_option(config.home) + (f" --root {shlex.quote(config.storage.root)}" if elsewhere else "")
