"""`nbrl export`, and the storage that commands read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from pydantic import BaseModel

from nbrl.flows.cli import completion
from nbrl.flows.cli.completion import ROOT
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.display.terminal import out

if TYPE_CHECKING:
    from nbrl.infra.storage import Storage

Model = TypeVar("Model", bound=BaseModel)
Root = Annotated[str, typer.Option(help="storage root: a folder, or an address such as s3://bucket/prefix")]
HOME = ".nbrl"
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
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="let a run that was begun elsewhere start the programs, and ask the servers, that its settings name"
    ),
]
Home = Annotated[str, typer.Option(help="folder of the local servers' state and logs")]


def export(
    run: Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)],
    folder: Annotated[Path, typer.Argument(help="where to write the model folder; nothing is overwritten")],
    checkpoint: Annotated[int | None, typer.Option(help="number of updates of the checkpoint; by default the newest")] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="convert the weights; by default they are copied unchanged"),
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="split the weights into files of at most this size, e.g. 5GB")
    ] = None,
    adapter: Annotated[bool, typer.Option("--adapter", help="write only what LoRA trained, in peft's format")] = False,
    root: Root = ROOT,
) -> None:
    """Write a run's policy as a Hugging Face folder: weights, tokenizer, chat template, configurations."""
    from nbrl.flows.cli.export import closing
    from nbrl.flows.cli.export import export as write
    from nbrl.tasks.runs.run import checked_name

    on_stop(lambda: "nothing was written")
    source = write(storage_at(root), checked_name(run), checkpoint, folder, dtype, max_shard_size, adapter)
    out.print(closing(folder, source, adapter), markup=False, highlight=False, soft_wrap=True)


def storage_at(root: str) -> "Storage":
    """Return the storage at `root`. Raises ConfigError if `root` is empty."""
    from nbrl.infra.storage import Storage, StorageSettings
    from nbrl.tasks.errors import ConfigError

    if not root.strip():
        raise ConfigError("--root is empty; give a folder or s3://bucket/prefix, or leave it out")
    return Storage(StorageSettings(root=root))


def request_of(context: typer.Context, model: type[Model], **more: Any) -> Model:
    """Return a request made of the options of a command that have the names of its fields, and of `--set`."""
    given = {name: context.params.get(name) for name in model.model_fields} | {"overrides": tuple(context.params["set_"] or ())}
    return model(**{name: value for name, value in given.items() if value is not None} | more)


def checked_home(folder: str) -> str:
    from nbrl.tasks.errors import ConfigError

    if not folder.strip():
        raise ConfigError("--home is empty; give a folder, or leave it out")
    return folder


def root_flag(config: Any) -> str:
    """Return the flag with which `nbrl show` finds this run's storage."""
    return "" if config.storage.root == ROOT else f" --root {config.storage.root}"


def home_flag(config: Any) -> str:
    """Return the flag with which `nbrl ui` shows this run's pages."""
    return "" if config.home == HOME else f" --home {config.home}"
