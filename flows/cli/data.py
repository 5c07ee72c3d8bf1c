"""`nbrl data`: published data sets as questions of one's own."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from nbrl.flows.cli.guard import on_stop
from nbrl.flows.display.terminal import err, out, say

data = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Published data sets as questions to train or evaluate on.")


@data.command("list")
def list_() -> None:
    """List the data sets that can be fetched."""
    from nbrl.tasks.environments.datasets.catalogue import CATALOGUE

    table = Table("name", "on the hub", "splits", "rule", "licence")
    for name, each in CATALOGUE.items():
        table.add_row(name, each.repository, ", ".join(each.splits), each.rule, each.licence)
    out.print(table)


@data.command()
def fetch(
    name: Annotated[str, typer.Argument(help="a data set of `nbrl data list`")],
    split: Annotated[str | None, typer.Option(help="split to fetch; the data set's first when left out")] = None,
    file: Annotated[
        Path | None, typer.Option(help="a file with the data set's own columns, instead of the hub", exists=True, dir_okay=False)
    ] = None,
    folder: Annotated[Path, typer.Option(help="folder to write to")] = Path("data"),
    limit: Annotated[int | None, typer.Option(min=1, help="number of questions, from the first; all when left out")] = None,
) -> None:
    """Write a split of a data set as Parquet files of questions and, where it has any, of passages to search in."""
    import pyarrow.parquet as pq

    on_stop(lambda: "nothing was written")
    from nbrl.tasks.environments.datasets.fetch import convert, from_file, from_hub, published
    from nbrl.tasks.errors import ConfigError

    data_set = published(name)
    chosen = split or data_set.splits[0]
    targets = [folder / f"{name}-{chosen}.parquet", folder / f"{name}-{chosen}-corpus.parquet"]
    if existing := [target for target in targets if target.exists()]:
        raise ConfigError(f"{existing[0]} exists; move it away, or choose another --folder: nothing is overwritten")
    with err.status(f"fetching {name}, {chosen}"):
        fetched = convert(name, chosen, from_file(file) if file else from_hub(name, chosen), limit)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, table in zip(targets, (fetched.questions, fetched.passages), strict=True):
            if len(table):
                beside = target.with_name(f".{target.name}.partial")
                pq.write_table(table, beside, compression="zstd")
                beside.rename(target)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written to: {error.strerror or error}") from error
    if fetched.left_out:
        say(f"{fetched.left_out} rows have no answer that could be compared, and were left out")
    out.print(_closing(targets, len(fetched.questions), len(fetched.passages), data_set.licence), highlight=False, markup=False)


def _closing(targets: list[Path], questions: int, passages: int, licence: str) -> str:
    """Return what was written, and the settings that use it, which must not be wrapped."""
    lines = [f"wrote {questions} questions to {targets[0]} (licence of the data set: {licence})"]
    name = targets[0].stem
    settings = f"{name}: {{kind: files, train: {targets[0]}, held_out: …"
    if passages:
        lines.append(f"wrote {passages} passages to {targets[1]}")
        settings += f", corpus: {targets[1]}"
    return "\n".join([*lines, f"use them    --set 'environments={{{settings}}}}}'"])
