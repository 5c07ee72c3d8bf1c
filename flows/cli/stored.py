"""`nbrl show` and `nbrl export`: read runs from a storage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.completion import ROOT
from nbrl.flows.cli.guard import guard
from nbrl.flows.cli.interrupt import Importing
from nbrl.flows.display.terminal import out

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


def show(
    trajectory: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN[/TRAJECTORY]",
            help="with the name of a run or evaluation, list its trajectories; with an id, show that one; without, list all runs",
            autocompletion=completion.runs_and_evaluations,
        ),
    ] = None,
    root: Root = ROOT,
    limit: Annotated[int, typer.Option(min=1, help="maximum rows of a list of trajectories")] = 40,
    notebook: Annotated[
        Path | None, typer.Option(metavar="FILE.ipynb", help="write the trajectory as a Jupyter notebook instead of showing it")
    ] = None,
) -> None:
    """List runs and trajectories, or read one: what the agent thought, ran and saw, and what it earned."""
    guard(lambda: _show(trajectory, root, limit, notebook))


def _show(trajectory: str | None, root: str, limit: int, path: Path | None) -> None:
    with Importing():
        from nbrl.flows.display.listing import find, listing, overview
        from nbrl.flows.display.save import save, writable
        from nbrl.flows.display.trajectory import render
        from nbrl.tasks.errors import ConfigError
        from nbrl.tasks.runs.run import checked_name

    storage = storage_at(root)
    if trajectory is None:
        if path is not None:
            raise ConfigError("--notebook writes one trajectory; name it as RUN/TRAJECTORY (`nbrl show RUN` lists them)")
        out.print(overview(storage), crop=False)
        return
    run, _, identity = trajectory.partition("/")
    run = checked_name(run)
    if not identity:
        if path is not None:
            raise ConfigError(f"--notebook writes one trajectory; name it as {run}/TRAJECTORY (`nbrl show {run}` lists them)")
        out.print(listing(storage, run, limit, out.width), crop=False)
        return
    for number, (key, match, rewards) in enumerate(find(storage, run, identity)):
        if path is None:
            out.print(render(key, match, rewards))
            continue
        target = writable(path.with_stem(f"{path.stem}-{number + 1}") if number else path)
        save(target, match, rewards)
        out.print(f"{target}   {key}", markup=False, highlight=False, soft_wrap=True)


def storage_at(root: str) -> "Storage":
    """Return the storage at `root`. Raises ConfigError if `root` is empty."""
    from nbrl.infra.storage import Storage, StorageSettings
    from nbrl.tasks.errors import ConfigError

    if not root.strip():
        raise ConfigError("--root is empty; give a folder or s3://bucket/prefix, or leave it out")
    return Storage(StorageSettings(root=root))
