"""`nbrl agent --replay`: a saved trajectory runs again without its services, and without its model unless one is named."""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from nbrl.agent.trajectory import Trajectory, to_table
from nbrl.infra.storage import Storage, StorageSettings
from tests.flows.model_server import act, model_server
from tests.flows.test_agent_cli import run
from tests.tasks.storing import stored as store

pytestmark = pytest.mark.process

CELLS = [
    act("print(search('Tilo'))\ntry: search(3)\nexcept Exception as error: print(error)", "look\x1b it <b>up</b>"),
    "no tags at all",
    act("print(history[0].think, open('data.csv').read())\n1/0"),
    act("submit_final_answer(search('Keldra'))"),
]
CORPUS = "Tilo was born in Keldra.\nKeldra lies on the Vorn.\n"
OPTIONS = ["--set", "agent.context_tokens=2000", "--set", "agent.action_tokens=400"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trajectory as notebook and as JSON, and the file it was given, but not its corpus."""
    folder: Path = tmp_path_factory.mktemp("saved")
    (folder / "corpus.txt").write_text(CORPUS)
    (folder / "data.csv").write_text("a,b\n")
    files = ["--corpus", "corpus.txt", "--set", "rollout.tools.search.top_k=5", "--file", "data.csv"]
    with model_server(*CELLS) as server:
        done = run(folder, "Where?", "--endpoint", server.url, *files, *OPTIONS, "--save", "first.ipynb", "--json", "-q")
    assert done.returncode == 0, done.stderr
    (folder / "first.json").write_text(done.stdout)
    (folder / "corpus.txt").unlink()
    return folder


def stored(saved: Path) -> list[str]:
    trajectory = Trajectory.model_validate_json((saved / "first.json").read_bytes())
    storage = Storage(StorageSettings(root=str(saved / "storage")))
    store(storage, "evaluations/e/evaluations/000000/e0001-abcdef/round-0/trajectories.index.parquet", to_table([trajectory]))
    return [f"e/{trajectory.id}", "--root", "storage"]


@pytest.mark.parametrize(
    "named",
    [
        pytest.param(lambda _: ["first.ipynb"], id="notebook"),
        pytest.param(lambda _: ["first.json"], id="json", marks=pytest.mark.more),
        pytest.param(stored, id="run"),
    ],
)
def test_it_runs_again_without_model_and_services(saved: Path, named: Callable[[Path], list[str]]) -> None:
    done = run(saved, "--replay", *named(saved), "--file", "data.csv", *OPTIONS, "--save", "again.ipynb")
    assert (done.returncode, done.stdout) == (0, "Keldra lies on the Vorn.\nTilo was born in Keldra.\n"), done.stderr
    assert "all 4 steps came out as they were recorded" in done.stderr
    first, again = (nbformat.read(saved / name, 4) for name in ("first.ipynb", "again.ipynb"))
    assert [cell.get("outputs") for cell in again.cells] == [cell.get("outputs") for cell in first.cells]
    assert again.cells[0].source == first.cells[0].source


def test_what_comes_out_otherwise_is_said(saved: Path) -> None:
    done = run(saved, "--replay", "first.ipynb", *OPTIONS, "--no-save")
    assert done.returncode == 0, done.stderr
    assert "1 of 4 recorded steps came out otherwise: 3" in done.stderr
    assert "FileNotFoundError" in done.stderr


@pytest.mark.more
def test_a_model_acts_on_recorded_answers_and_a_call_that_is_not_there_fails_in_its_cell(saved: Path) -> None:
    cells = ["print(search('Tilo'))", "try: search('else')\nexcept Exception as error: print(error)\nsubmit_final_answer('on')"]
    with model_server(*map(act, cells)) as server:
        done = run(saved, "--replay", "first.ipynb", "--endpoint", server.url, "--no-save")
    assert (done.returncode, done.stdout) == (0, "on\n"), done.stderr
    assert "Tilo was born in Keldra." in done.stderr
    assert "search was never recorded whole with these arguments; a replay asks no service" in done.stderr
    assert "Where?" in json.dumps(server.asked[0])


def test_a_cell_may_be_edited_before_it_is_replayed(saved: Path) -> None:
    made = nbformat.read(saved / "first.ipynb", 4)
    (last,) = [cell for cell in made.cells if "submit_final_answer" in cell.source]
    last.source = "submit_final_answer(search('Tilo').upper())"
    nbformat.write(made, saved / "edited.ipynb")
    done = run(saved, "--replay", "edited.ipynb", "--file", "data.csv", *OPTIONS, "--no-save")
    assert done.returncode == 3
    assert "less often than it is called" in done.stderr
    assert "step_limit after 4 steps" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "no model given: pass --endpoint URL, --run RUN or --replay FILE"),
        (["q", "--replay", "first.ipynb"], "a question does nothing where recorded actions are played"),
        (
            ["--replay", "first.ipynb", "--set", "seed=1"],
            "--set seed=1: only settings of agent, rollout.tools, sandbox, home act",
        ),
        (["q", "--endpoint", "http://127.0.0.1:9", "--root", "x"], "--root does nothing without --run or --replay"),
        (["--replay", "no.ipynb"], "there is no file no.ipynb to replay"),
        (["--replay", "nothing"], "there is no file nothing to replay"),
        (["--replay", "no/such"], "there are no trajectories of a run 'no'"),
        (["--replay", "data.csv"], "data.csv cannot be replayed: it is neither a notebook that nbrl saved nor"),
        (["--replay", "empty.ipynb"], "empty.ipynb cannot be replayed: it is neither a notebook that nbrl saved nor"),
    ],
)
def test_what_cannot_be_replayed_is_one_error(saved: Path, options: list[str], words: str) -> None:
    nbformat.write(nbformat.v4.new_notebook(), saved / "empty.ipynb")
    done = run(saved, *options, "--no-save")
    assert (done.returncode, done.stdout) == (1, "")
    assert words in done.stderr
    assert done.stderr.count("nbrl: ") == 1
    assert "Traceback" not in done.stderr
