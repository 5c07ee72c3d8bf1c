"""`nbrl export`, and the storage that commands read."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.completion import ROOT
from nbrl.flows.cli.guard import Importing, guard
from nbrl.flows.display.progress import out

if TYPE_CHECKING:
    from nbrl.infra.storage import Storage

Root = Annotated[str, typer.Option(help="storage root: a folder, or an address such as s3://bucket/prefix")]


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

    def work() -> None:
        with Importing():
            from nbrl.flows.cli.export import closing
            from nbrl.flows.cli.export import export as write
            from nbrl.tasks.runs.run import checked_name

        source = write(storage_at(root), checked_name(run), checkpoint, folder, dtype, max_shard_size, adapter)
        out.print(closing(folder, source, adapter), markup=False, highlight=False, soft_wrap=True)

    guard(work, lambda: "nothing was written")


def storage_at(root: str) -> "Storage":
    """Return the storage at `root`. Raises ConfigError if `root` is empty."""
    from nbrl.infra.storage import Storage, StorageSettings
    from nbrl.tasks.errors import ConfigError

    if not root.strip():
        raise ConfigError("--root is empty; give a folder or s3://bucket/prefix, or leave it out")
    return Storage(StorageSettings(root=root))
