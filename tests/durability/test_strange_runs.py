"""Whatever a stranger wrote into a run's folder, each command works or ends with a sentence, and nothing else changes."""

import hashlib
import json
import random
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from typer.testing import CliRunner

from nbrl.flows.cli import completion
from nbrl.flows.cli.commands import app
from nbrl.flows.pages.app import app as pages
from nbrl.infra.errors import InfraError
from nbrl.infra.parse import SEAL, seal
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RunError
from nbrl.tasks.runs.checkpoints import checkpoint_folder
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.history import check_unbroken, read_record
from nbrl.tasks.runs.pins import champions
from nbrl.tasks.runs.recipes import resumed_config, trusted_config
from nbrl.tasks.runs.redo import put_aside
from nbrl.tasks.runs.results import scores_of
from nbrl.tasks.runs.retention import prune
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.sweep import sweep
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.tracking.mlflow_sync import MlflowSync, deliver
from nbrl.tasks.tracking.promote import promote
from tests.durability.conftest import Labs
from tests.durability.crash_lab import RUN
from tests.durability.crash_tracking import FileTracking
from tests.durability.strange import change, files, replace
from tests.tasks.checkpoint_lab import CONFIG

pytestmark = pytest.mark.process
LIMIT_S = 120  # of one command; a busy machine is slow, and what hangs hangs for good
MINE = "mine"


@pytest.fixture(scope="module")
def base(whole: tuple[Path, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the run and another one, and a folder beside it."""
    folder = tmp_path_factory.mktemp("strange") / "base"
    shutil.copytree(whole[0] / "root", folder / "root")
    shutil.copytree(folder / "root/runs" / RUN, folder / "root/runs" / MINE)
    mine = folder / "root/runs" / MINE / "run.json"
    fields = json.loads(mine.read_text()) | {"name": MINE}
    mine.write_bytes(seal({name: value for name, value in fields.items() if name != SEAL}))
    (folder / "beside").mkdir()
    (folder / "beside/keep.json").write_text('{"keep": "me"}')
    return folder


def digests(folder: Path) -> dict[str, str]:
    """Of everything but the run: what no command may change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if name.parts[:3] != ("root", "runs", RUN) and name.parts[:2] != ("root", "champions") and not path.is_dir():
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def lines(root: Path) -> list[list[str]]:
    """Commands that read the run."""
    (trajectory,) = list((root / "runs" / MINE / "iterations/000000").rglob("round-0/trajectories.index.parquet"))
    where = ["--root", str(root)]
    return [
        ["runs", *where],
        ["runs", "--json", *where],
        ["show", RUN, *where],
        ["show", RUN, "--held-out", "--best", "3", *where],
        ["show", RUN, "--group", first_id(trajectory), *where],
        ["show", f"{RUN}/{first_id(trajectory)}", *where],
        ["audit", RUN, "--no-tracking", *where],
        ["compare", RUN, f"{MINE}@1", *where],
        ["export", RUN, str(root.parent / "exported"), *where],
        ["logs", RUN, *where],
        ["stop", RUN, *where],
    ]


@cache
def first_id(index: Path) -> str:
    return str(pq.read_table(index)["id"][0].as_py())


def typed(line: list[str]) -> None:
    """Type a command. Raises what would be a traceback, and where it writes what a terminal obeys."""
    done = CliRunner().invoke(app, line)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    if done.exit_code not in (0, 1, 4):
        raise AssertionError(f"exit code {done.exit_code}: {done.output[-300:]}")
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", done.output):
        raise AssertionError(f"it writes {done.output!r}"[:300])


def looked_at(storage: Storage) -> None:
    """Open each page of the run that another page links to, three links deep."""
    client, seen, left = TestClient(pages(storage), base_url="http://127.0.0.1"), set[str](), ["/"]
    for _ in range(3):
        found = set[str]()
        for address in left:
            reply = client.get(address)
            assert reply.status_code in (200, 404, 503), reply.text[:300]
            found |= {each for each in re.findall(r'href="(/runs/[^"#?]*)', reply.text) if each.startswith(f"/runs/{RUN}")}
        seen.update(left)
        left = sorted(found - seen)[:4]


def gone_on_with(storage: Storage, home: Path) -> None:
    """What a start of the run does before it works: it reads, clears away, and puts aside."""
    known = known_run(storage, RUN)
    config = resumed_config(storage, RUN, ())
    writer = Writer(known, take(storage, known.layout).name)
    records = [each for number in range(2) if (each := read_record(storage, known, number))]
    for step in (
        lambda: check_unbroken(storage, known),
        lambda: sweep(storage, writer),
        lambda: prune(storage, known, records, scores_of(storage, known), config.checkpoints),
        lambda: champions(storage),
        lambda: checkpoint_folder(storage, home, RUN, None).__enter__(),
        lambda: put_aside(storage, CONFIG, writer, 2, "update"),
        lambda: put_aside(storage, CONFIG, writer, 1, ""),
    ):
        with suppress(InfraError, RunError):
            step()


def offered(root: Path) -> None:
    """What a shell completes of the run."""
    context = typer.Context(click.Command("show"))
    context.params = {"root": str(root)}
    assert all(re.fullmatch(r"[\w.@+-]+", word) for word in completion.runs_and_evaluations(context, ""))


def told(storage: Storage, home: Path) -> None:
    """What `track` sends and what `promote` writes."""
    home.mkdir(exist_ok=True)
    (home / "mlflow.json").unlink(missing_ok=True)
    tracking: Any = FileTracking(home / "mlflow.json")
    for step in (
        lambda: trusted_config(storage, RUN, [], trust=False),
        lambda: deliver(MlflowSync(resumed_config(storage, RUN, ()), storage, known_run(storage, RUN), tracking), tracking),
        lambda: promote(storage, RUN, None),
    ):
        with suppress(InfraError, RunError):
            step()


@contextmanager
def in_time(what: str) -> Iterator[None]:
    """Fails where the body hangs. Passes over the project's own errors, which are one sentence each."""

    def late(*_: object) -> NoReturn:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_S)
    try:
        yield
    except (InfraError, RunError):
        pass
    except BaseException as error:
        error.add_note(f"in {what}")
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(base: Path, folder: Path, seed: int, train: Callable[[Path, Path], None] | None = None) -> None:
    """Make a copy, change it once or a few times, and try every command. Raises where one breaks or changes anything else."""
    draw = random.Random(seed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)
    root, victims = folder / "root", [folder / "beside/keep.json", folder / f"root/runs/{MINE}/run.json"]
    changes = [change(root / "runs" / RUN, victims, draw) for _ in range(draw.choice([1, 1, 1, 2, 4]))]
    before, storage = digests(folder), Storage(StorageSettings(root=str(root)))
    try:
        for line in lines(root):
            with in_time(" ".join(line[:2])):
                typed(line)
            shutil.rmtree(folder / "exported", ignore_errors=True)
        with in_time("the pages"):
            looked_at(storage)
        with in_time("completion"):
            offered(root)
        with in_time("track and promote"):
            told(storage, folder.with_name("home"))
        if train is not None:
            with in_time("train"):
                train(root, folder.with_name("home"))
        with in_time("a start"):
            gone_on_with(storage, folder.with_name("home"))
        assert digests(folder) == before, "something else changed"
    except BaseException as error:
        error.add_note(f"seed {seed}: {'; '.join(changes)}")
        raise


def trains(labs: Labs) -> Callable[[Path, Path], None]:
    """Continue the run with its real flow; what it raises must be one of the project's errors."""

    def train(root: Path, home: Path) -> None:
        done = labs[0].train(root, home, take_over=True)
        if done["status"]:
            last = [line for line in done["said"].splitlines() if re.match(r"[A-Za-z_.]+(Error|Exception|Interrupt)\b", line)][-1]
            assert last.startswith("nbrl."), done["said"][-1500:]

    return train


@pytest.mark.more
def test_a_table_whose_column_lacks_or_holds_something_else_is_one_sentence(
    base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("misfits")
    shutil.copytree(base / "root", folder / "root")
    run = folder / "root/runs" / RUN
    tables = {path.name: path for path in sorted(run.rglob("*.parquet")) if path.name != "corpus.parquet"}
    chunk = next(path for path in sorted(run.rglob("*.parquet")) if "/trajectories/" in str(path))
    for path in {**{name: each for name, each in tables.items() if len(name) < 64}, "chunk": chunk}.values():
        before = {each: each.read_bytes() for each in files(run)}
        table = pq.read_table(path)
        for number, name in enumerate(table.column_names):
            changed = table.drop_columns([name])
            if number % 2:
                changed = changed.append_column(name, pa.array([[{"odd": 1.5}]] * len(table)))
            replace(path, changed)
            for line in lines(folder / "root"):
                if line[0] in ("audit", "compare") or line[:3] == ["show", RUN, "--root"]:
                    with in_time(f"{' '.join(line[:2])} with {path.name} of another {name}"):
                        typed(line)
            for each, data in before.items():
                each.write_bytes(data)


@pytest.mark.more
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
@pytest.mark.attack(
    tried="Change any byte, value, file or name of a run, its digests made right again",
    wall="all of these walls",
    effect="each command works or ends with a sentence; nothing beside the run changes",
)
def test_every_command_ends_with_a_sentence_or_works_on_a_strangers_run(
    base: Path, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    tried(base, tmp_path_factory.getbasetemp() / "strange-run", seed)


@pytest.mark.long
@settings(max_examples=1000)
@given(seed=st.integers(0, 2**32))
def test_a_thousand_strangers_runs_are_read_continued_and_trained_on(
    base: Path, labs: Labs, tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    tried(base, tmp_path_factory.getbasetemp() / "strange-run", seed, trains(labs) if seed % 4 == 0 else None)
