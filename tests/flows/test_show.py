import json
from io import StringIO
from pathlib import Path

import nbformat
import pyarrow as pa
import pytest
from rich.console import Console
from typer.testing import CliRunner

from nbrl.agent.trajectory import Status, Step, Trajectory, to_table
from nbrl.flows.cli.commands import app
from nbrl.flows.display.listing import find, listing
from nbrl.flows.display.trajectory import render
from nbrl.infra.storage import Storage, StorageSettings
from tests.tasks.storing import stored as store

EVALUATED = "evaluations/000000/e0001-abcdef/round-0"
EVIL = "\x1b]0;pwned\x07\x1b[2J[red]markup[/red]\x9b"


def trajectory() -> Trajectory:
    step = Step(think=EVIL, code=f"print('{EVIL}')", cell_status="ok", observation=EVIL)
    return Trajectory(
        id="q-0",
        group="q",
        sample=0,
        question=EVIL,
        ability="qa",
        status=Status.ANSWERED,
        answer=EVIL,
        nodes=[],
        steps=[step],
    )


def printed(item: object) -> str:
    console = Console(file=StringIO(), width=100, color_system=None)
    console.print(item)
    file = console.file
    assert isinstance(file, StringIO)
    return file.getvalue()


def test_what_a_model_wrote_neither_moves_the_terminal_nor_is_markup() -> None:
    shown = printed(render("key", trajectory(), {"total": 0.5, "step_rewards": [0.5]}))
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)
    assert "[red]markup[/red]" in shown


def test_notepad_and_rewards_are_shown_where_they_change() -> None:
    notes = json.dumps({"plan": [{"text": "look", "state": "done"}], "facts": [EVIL], "draft": ""})
    steps = [Step(think="a", code="1", notepad=notes), Step(think="b", code="2", notepad=notes)]
    rewards = {"trajectory": "q-0", "total": 0.75, "em": 1.0, "step_rewards": [0.125, 0.625]}
    shown = printed(render("key", trajectory().model_copy(update={"steps": steps}), rewards))
    assert shown.count("[x] look") == 1
    assert [word in shown for word in ("reward 0.125", "reward 0.625", "reward 0.750", "em 1")] == [True] * 4
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


def test_runs_and_evaluations_are_listed_and_found(tmp_path: object) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    for folder in ("runs/r/iterations/000003/e0001-abcdef/round-0", f"evaluations/e/{EVALUATED}"):
        store(storage, f"{folder}/trajectories.index.parquet", to_table([trajectory()]))
    assert "q-0" in printed(listing(storage, "r", 10))
    assert "iter 4" in printed(listing(storage, "r", 10))
    assert "q-0" in printed(listing(storage, "e", 10))
    assert find(storage, "e", "q-0")[0][1].question == EVIL


def test_a_trajectory_is_written_as_a_notebook_with_its_rewards(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    for number in (0, 1):
        store(storage, f"runs/r/iterations/00000{number}/round-0/trajectories.index.parquet", to_table([trajectory()]))
    rewards = {"trajectory": "q-0", "total": 0.5, "em": 1.0, "step_rewards": [0.5]}
    storage.write_table("runs/r/iterations/000001/round-0/rewards.parquet", pa.Table.from_pylist([rewards]))
    target = tmp_path / "out.ipynb"
    command = ["show", "r/q-0", "--root", str(tmp_path / "storage"), "--notebook", str(target)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "iteration 2; --iteration N or RUN@N chooses iteration 1" in " ".join(done.output.split())
    scored = nbformat.read(target, 4)
    CliRunner().invoke(app, [*command, "--iteration", "1"])
    unscored = nbformat.read(target, 4)
    assert scored.metadata.nbrl.rewards == {"total": 0.5, "em": 1.0}
    assert scored.cells[2].metadata.nbrl.reward == 0.5
    assert "rewards" not in unscored.metadata.nbrl
    assert str(target) in done.output.replace("\n", "")


@pytest.mark.parametrize(
    ("what", "where", "words"),
    [("r", "out.ipynb", "writes one trajectory"), ("r/q-0", "no/out.ipynb", "there is no folder"), ("r/q-0", ".", "is a folder")],
)
def test_a_notebook_that_cannot_be_written_is_one_error(tmp_path: Path, what: str, where: str, words: str) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    store(storage, "runs/r/iterations/000001/round-0/trajectories.index.parquet", to_table([trajectory()]))
    done = CliRunner().invoke(app, ["show", what, "--root", str(tmp_path), "--notebook", str(tmp_path / where)])
    assert done.exit_code == 1
    assert words in done.stderr


LONG = "world-held_out-0-000000-and-more-of-an-id-than-stands-in-half-a-terminal"


@pytest.fixture
def stored(tmp_path: Path) -> Storage:
    """Three runs, of which one ended, one goes on and one is continued after its end, and two evaluations."""
    storage = Storage(StorageSettings(root=str(tmp_path)))
    found = trajectory().model_copy(update={"id": LONG, "question": "what is it? " * 30, "answer": "this " * 30})
    for run, iterations, summed in (("ended", 2, 2), ("going", 1, None), ("more", 3, 2), ("new", 0, None)):
        storage.write_bytes(f"runs/{run}/run.json", b"{")
        for number in range(iterations):
            storage.write_bytes(f"runs/{run}/iterations/{number:06d}/record.json", b"{}")
            store(storage, f"runs/{run}/iterations/{number:06d}/round-0/trajectories.index.parquet", to_table([found] * 3))
        if summed is not None:
            storage.write_bytes(f"runs/{run}/summary.json", json.dumps({"iterations": summed}).encode())
    for name in ("scored", "broken"):
        storage.write_table(f"evaluations/{name}/data/held_out.parquet", to_table([found]))
        store(storage, f"evaluations/{name}/{EVALUATED}/trajectories.index.parquet", to_table([found]))
    storage.write_bytes(f"evaluations/scored/{EVALUATED}/rewards.parquet", b"")
    return storage


def test_without_a_name_the_runs_are_listed_though_their_files_are_no_good(stored: Storage) -> None:
    done = CliRunner().invoke(app, ["show", "--root", stored.settings.root])
    assert done.exit_code == 0, done.output
    rows = [line.split()[:3] for line in done.stdout.splitlines()[3:] if line.startswith(" ") and line.strip()]
    assert sorted(rows) == [
        ["broken", "damaged", "evaluation"],
        ["ended", "damaged", "2/?"],
        ["going", "damaged", "1/?"],
        ["more", "damaged", "3/?"],
        ["new", "damaged", "0/?"],
        ["scored", "damaged", "evaluation"],
    ]


def test_where_there_are_no_runs_it_says_how_to_make_one(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["show", "--root", str(tmp_path / "none")])
    assert done.exit_code == 0
    assert "there are no runs in" in done.stdout
    assert "`nbrl train RECIPE`" in " ".join(done.stdout.split())


@pytest.mark.parametrize("columns", ["20", "80", "150"])
def test_the_id_of_a_trajectory_is_never_cut(stored: Storage, columns: str) -> None:
    done = CliRunner().invoke(app, ["show", "ended", "--root", stored.settings.root], env={"COLUMNS": columns})
    assert done.stdout.count(f" {LONG} ") == 6
    assert done.stdout.count(" answered ") == done.stdout.count(" iter ") == 6
    shown = CliRunner().invoke(app, ["show", f"ended/{LONG}", "--root", stored.settings.root])
    assert shown.exit_code == 0


@pytest.mark.parametrize(("limit", "rows"), [("1", 1), ("4", 4), ("100", 6)])
def test_a_list_has_as_many_rows_as_were_asked_for(stored: Storage, limit: str, rows: int) -> None:
    done = CliRunner().invoke(app, ["show", "ended", "--root", stored.settings.root, "--limit", limit])
    assert done.stdout.count(LONG) == rows


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_list_of_no_rows_is_refused(stored: Storage, limit: str) -> None:
    done = CliRunner().invoke(app, ["show", "ended", "--root", stored.settings.root, "--limit", limit])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--limit" in done.stderr


def test_a_question_of_several_lines_stays_in_its_row(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    made = trajectory().model_copy(update={"question": "1\nnbrl: x"})
    store(storage, f"evaluations/e/{EVALUATED}/trajectories.index.parquet", to_table([made]))
    assert "1 nbrl: x" in printed(listing(storage, "e", 10, 100))
