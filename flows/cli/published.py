"""`nbrl publish-run`, and `nbrl audit` of what it wrote."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, Root, home_at, overrides_of, storage_at
from nbrl.flows.display.terminal import err, out, plain, say

if TYPE_CHECKING:
    from nbrl.tasks.runs.config import RunConfig
    from nbrl.tasks.runs.run import Run

MOST_GB = 20.0
LEAST = 1 << 30  # bytes of memory, with which an audit of a small run never comes near its limit
RECOMPUTED = ("environments", "update.loss")  # settings of the run that act here, and may reach beyond it


def publish_run(
    run: Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)],
    folder: Annotated[Path, typer.Argument(help="the folder to write; nothing is overwritten")],
    parts: Annotated[
        Literal["weights", "adapters", "none"],
        typer.Option("--with", help="the newest weights: the whole model, what LoRA trained, or none"),
    ] = "weights",
    sign: Annotated[Path | None, typer.Option(metavar="KEY", help="sign it by this SSH key, with ssh-keygen")] = None,
    as_is: Annotated[bool, typer.Option("--as-is", help="publish folders and hosts of this machine that were recorded")] = False,
    home: Home = None,
    root: Root = None,
) -> None:
    """Write a run as a folder that strangers can verify with `nbrl audit`.

    It has records, questions, trajectories, rewards, the orders of updates, weights, a model card, and a list of all digests.
    Settings that name this machine or its user are left out.
    """
    from nbrl.tasks.bundle.publish import publish_run as write

    with err.status("publishing"):
        contents = write(storage_at(home, root), run, folder, parts, sign, as_is)
    size = sum(each.size for each in contents.files.values())
    signed = "signed" if sign else "not signed"
    out.print(
        f"published run {run} in {folder}: {len(contents.files)} files, {size / 1e6:.1f} MB, {signed}, root {contents.root}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    out.print(
        f"verify it    nbrl audit {folder}{' --signed-by KEY.pub' if sign else ''}", highlight=False, markup=False, soft_wrap=True
    )


def is_published(text: str) -> bool:
    """Return whether a text names a published run: an address, or a folder with its list. A run's name is neither."""
    from nbrl.tasks.bundle.contents import CONTENTS
    from nbrl.tasks.bundle.download import is_address

    return is_address(text) or (("/" in text or text.startswith(".")) and Path(text).is_dir()) or (Path(text) / CONTENTS).exists()


def audit_published(
    where: str,
    home: str | None,
    replay: int | None,
    signed_by: Path | None,
    most_gb: float | None,
    as_json: bool,
    set_: list[str] | None,
    trust: bool,
) -> None:
    """Verify a published run; exit code 1 and all contradictions if it is not what its records say."""
    from nbrl.infra.errors import StorageError
    from nbrl.tasks.audit.audit import Audit
    from nbrl.tasks.bundle.contents import check_size, read_contents
    from nbrl.tasks.bundle.download import download, is_address
    from nbrl.tasks.bundle.signature import is_signed
    from nbrl.tasks.bundle.verify import check_bundle, check_rest, claims
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.recipes import trusted_config
    from nbrl.tasks.runs.run import known_run

    most_gb = MOST_GB if most_gb is None else most_gb
    with ExitStack() as stack:
        folder = Path(where)
        if is_address(where):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nbrl-published-"))) / "run"
            with err.status(f"fetching {where}"):
                contents = download(where, folder, most_gb)
        else:
            contents = read_contents(folder)
            check_size(where, contents, most_gb)
        status = stack.enter_context(err.status("comparing digests"))
        try:
            storage = check_bundle(folder, contents, signed_by)
        except StorageError as error:
            raise ConfigError(str(error)) from error
        of_run = known_run(storage, contents.run)
        overrides = overrides_of(home, set_)
        config = _at_home(trusted_config(storage, contents.run, overrides, trust, used=RECOMPUTED), home_at(home))
        if replay:
            _check_workers(config, trust)
            config = _with_policy(config, of_run)
        checked = Audit(storage, config, of_run, status.update, with_checkpoints=False, bounds=_within_free_memory)
        found = [" ".join(f"{each.where}: {each.what}".split()) for each in checked.contradictions(None, replay)]
        if not checked.records:
            found.append("records: there is none")
        elif not found:
            found += check_rest(folder, contents, of_run, checked.records, checked.evaluations)
        signed = is_signed(folder)
    counts = len(checked.evaluations)
    rows = [] if found else list(claims(contents, config, signed, signed_by, checked.records, counts, checked.sessions, replay))
    if as_json:
        said = [each._asdict() for each in rows]
        print(json.dumps({"run": contents.run, "root": contents.root, "claims": said, "contradictions": found}))
    else:
        for sentence in found:
            say(sentence, "red")
        for each in rows:
            out.print(plain(f"{each.certainty:10}  {each.what}: {each.why}"), highlight=False, soft_wrap=True)
        if not found:
            out.print(f"the published run {contents.run} is what its records say", highlight=False, markup=False)
    if found:
        raise typer.Exit(1)


@contextmanager
def _within_free_memory() -> Iterator[None]:
    """Leave half of the free memory to others, however large what a stranger wrote becomes. Raises ConfigError."""
    from nbrl.infra.process.memory import free_memory, memory_limited
    from nbrl.tasks.errors import ConfigError

    most = max(LEAST, free_memory() // 2)
    try:
        with memory_limited(most):
            yield
    except MemoryError as error:
        raise ConfigError(
            f"the audit takes more than {most / (1 << 30):.1f} GB of memory, about half of what is free here: run it where there "
            "is more, if you expect so large a run"
        ) from error


def _at_home(config: "RunConfig", home: str) -> "RunConfig":
    """Return the settings with nothing that the run says of its machine: folders, cluster and caches are this user's."""
    from nbrl.infra.node_cache import NodeSettings
    from nbrl.infra.ray_cluster import RaySettings

    return config.model_copy(update={"home": home, "ray": RaySettings(), "nodes": NodeSettings()})


def _check_workers(config: "RunConfig", trust: bool) -> None:
    """Raises ConfigError for more processes and threads than a stranger may start here."""
    import os

    from nbrl.tasks.errors import ConfigError

    threads, most = config.update.workers * config.update.threads_per_worker, max(8, 2 * (os.cpu_count() or 1))
    if threads > most and not trust:
        raise ConfigError(
            f"the update was done by {threads} threads in all, and this machine starts {most} for a stranger; --trust starts them"
        )


def _with_policy(config: "RunConfig", run: "Run") -> "RunConfig":
    """Return the settings with the folder of the model that the run began with: the one that is named, or one of this package.

    Raises ConfigError where neither is that model.
    """
    import nbrl.infra
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.model_folder.source import content_digest

    shipped = Path(str(nbrl.infra.__path__[0])) / "policies"
    for folder in (Path(config.policy.path), *sorted(shipped.iterdir())):
        if (folder / "config.json").is_file() and content_digest(folder) == run.policy:
            return config.model_copy(update={"policy": config.policy.model_copy(update={"path": str(folder)})})
    raise ConfigError(
        f"an update is done again with the model that the run began with, {config.policy.path!r}, whose files have the digest "
        f"{run.policy}; name its folder by --set policy.path=FOLDER"
    )
