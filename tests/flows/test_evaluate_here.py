"""One line that evaluates a served model on a file of questions, in a process without Ray, Prefect and MLflow."""

import csv
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.runs.preflight import prepared
from tests.flows.conftest import NBRL
from tests.flows.made import chunks_of
from tests.flows.model_server import TINY, ModelServer, act, model_server
from tests.flows.typed import nbrl
from tests.processes import check_gone, mark

pytestmark = pytest.mark.sandbox

ANSWER = act("submit_final_answer('14')")
ROWS = [{"nr": number, "frage": f"Was ist {number} mal 7?", "antwort": str(number * 7)} for number in (1, 2, 3)]
COLUMNS = ("--columns", "question=frage,answers=antwort")
SMALL = ("agent.context_tokens=1024", "agent.action_tokens=64")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server(ANSWER) as made:
        yield made


def evaluate(folder: Path, server: ModelServer, *options: str) -> "subprocess.CompletedProcess[str]":
    """The command, where neither Ray nor Prefect, MLflow or torch can be imported."""
    return nbrl("evaluate", *options, "--endpoint", f"{server.url}/v1", folder=folder, extras=False)


def summary_of(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_one_line_evaluates_a_file_and_gives_it_back_with_answers_and_scores(tmp_path: Path, server: ModelServer) -> None:
    written(tmp_path / "fragen.csv", ROWS)
    line = ["fragen.csv", *COLUMNS, "--json", "--csv", "out.csv"]
    done = evaluate(tmp_path, server, *line)
    summary = summary_of(done)
    assert (summary["metrics"]["success"], summary["trajectories"], summary["recipe"]) == (pytest.approx(1 / 3), 3, "fragen")
    assert summary["name"].startswith("fragen-scripted-")
    assert f"`nbrl track {summary['name']}` delivers it to MLflow" in done.stderr
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["nr"], row["frage"], row["answer"], row["success"]) for row in rows] == [
        (str(row["nr"]), row["frage"], "14", "1.0" if row["antwort"] == "14" else "0.0") for row in ROWS
    ]
    again = evaluate(tmp_path, server, *line)
    assert (summary_of(again), again.stderr, len(server.asked)) == (summary, "", 3)
    written(tmp_path / "fragen.csv", ROWS[:2])  # other questions are another evaluation
    assert summary_of(evaluate(tmp_path, server, *line))["trajectories"] == 2
    refused = evaluate(tmp_path, server, *line, "--name", summary["name"])
    assert "was begun with other questions than fragen.csv has; choose another --name" in refused.stderr


def _csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    return written(path.with_suffix(".csv"), rows)


def _json(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.with_suffix(".json").write_text(json.dumps(rows))
    return path.with_suffix(".json")


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.with_suffix(".jsonl").write_text("\n".join(map(json.dumps, rows)))
    return path.with_suffix(".jsonl")


def _parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("write", [_csv, _json, _jsonl, _parquet])
def test_columns_with_the_usual_names_need_no_option(
    tmp_path: Path, server: ModelServer, write: Callable[[Path, list[dict[str, Any]]], Path]
) -> None:
    path = write(tmp_path / "q", [{"question": "Was ist 2 mal 7?", "answer": 14}])
    said = evaluate(tmp_path, server, path.name, "--rule", "number", "--samples", "2", "--dry-run").stdout
    assert "# questions: 1 × 2 = 2 trajectories" in said
    assert "# the first: Was ist 2 mal 7? → 14" in said
    assert "# compared by: number" in said
    assert "# runs in this process" in said
    assert not (tmp_path / ".nbrl").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["q.csv"], r"lacks the column 'question'; there are: antwort, frage, nr\. --columns question=… names it"),
        (["q.csv", "--columns", "question=frge,answers=antwort"], "which --columns question=… names; did you mean 'frage'"),
        (["q.csv", "--columns", "asked=frage"], "there is no column 'asked' to name"),
        (["q.csv", "--columns", "frage"], "--columns 'frage' must look like question=THEIRS"),
        (["q.csv", *COLUMNS, "--rule", "numbr"], "--rule 'numbr' is no rule that compares answers; did you mean 'number'"),
        (["none.csv"], "there is no file of questions .*/none.csv; correct the path"),
        (["empty.csv"], "empty.csv has no rows"),
        (["tiny-cpu", *COLUMNS], "--columns and --rule describe a file of questions"),
    ],
)
def test_what_is_wrong_is_one_sentence(tmp_path: Path, server: ModelServer, options: list[str], words: str) -> None:
    written(tmp_path / "q.csv", ROWS)
    (tmp_path / "empty.csv").write_text("question,answers\n")
    done = evaluate(tmp_path, server, *options)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert re.search(words, done.stderr), done.stderr


def test_a_server_that_is_away_is_one_sentence(tmp_path: Path) -> None:
    written(tmp_path / "q.csv", ROWS)
    with model_server(ANSWER) as gone:
        pass
    done = evaluate(tmp_path, gone, "q.csv", *COLUMNS)
    assert done.returncode == 1
    assert done.stderr.startswith(f"nbrl: nothing answers at {gone.url}/v1/models: ")
    assert done.stderr.rstrip().endswith("start the server or correct --endpoint")
    done = nbrl("evaluate", "q.csv", folder=tmp_path, extras=False)
    assert done.stderr == "nbrl: no model is given for the questions of q.csv; give --endpoint URL or --model\n"


def test_a_recipe_for_a_served_model_needs_neither_policy_nor_iterations_nor_training_questions(
    tmp_path: Path, server: ModelServer
) -> None:
    written(tmp_path / "fragen.csv", ROWS)
    (tmp_path / "mine.yaml").write_text(
        "environments: {e: {kind: files, held_out: fragen.csv, columns: {question: frage, answers: antwort}}}\n"
        "agent: {max_steps: 3}\n"
    )
    summary = summary_of(evaluate(tmp_path, server, "mine.yaml", "--json"))
    assert (summary["recipe"], summary["trajectories"]) == ("mine", 3)
    with pytest.raises(ConfigError, match=r"environments\.e has no questions to train on; name some"):
        prepared(str(tmp_path / "mine.yaml"), ["iterations=1", f"policy.path={TINY}", *SMALL], "train")


def test_an_evaluation_that_was_killed_goes_on_and_asks_only_what_is_missing(tmp_path: Path) -> None:
    written(tmp_path / "q.csv", [row | {"nr": 0} for row in ROWS])
    storage = Storage(StorageSettings(root=str(tmp_path / ".nbrl/storage")))
    with model_server(ANSWER, ANSWER, None) as server:  # the third answer never comes
        line = ["evaluate", "q.csv", *COLUMNS, "--endpoint", f"{server.url}/v1", "--name", "k", "--json"]
        layout = EvaluationLayout("k")
        with subprocess.Popen([str(NBRL), *line], env=mark("here"), cwd=tmp_path, stderr=subprocess.PIPE) as first:
            end = time.monotonic() + 120
            while not chunks_of(storage, layout) and time.monotonic() < end and first.poll() is None:
                time.sleep(0.05)
            os.kill(first.pid, signal.SIGKILL)
        (chunk,) = chunks_of(storage, layout)
        finished = {each.id: each for each in from_table(storage.read_table(chunk))}
        assert len(finished) == 2
        server.actions, asked = [ANSWER], len(server.asked)
        summary = summary_of(nbrl(*line, folder=tmp_path, extras=False))
        assert len(server.asked) == asked + 1
    assert (summary["trajectories"], summary["failed"]) == (3, 0)
    there = [from_table(storage.read_table(each)) for each in chunks_of(storage, layout)]
    assert {each.id: each for chunk in there for each in chunk if each.id in finished} == finished
    check_gone("here")


TASKS = '''
from nbrl.tasks.own import Question, Score, Tasks


class Doubles(Tasks):
    """Asks for the double of a number."""

    def questions(self, split):
        for number in range(35 if split == "held_out" else 0):
            yield Question(f"What is 2 * {number}?", reference=2 * number)

    def score(self, trajectory, reference):
        return Score(success=trajectory.answer == str(reference))


def double(number: int) -> int:
    """Gives the double of a number."""
    return 2 * number
'''


@pytest.mark.e2e
@pytest.mark.more
@pytest.mark.parametrize("samples", [1, 2])  # 35 trajectories in one process, 70 on Ray
def test_the_code_beside_a_recipe_is_found_by_whatever_runs_it(tmp_path: Path, samples: int) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "doubles.py").write_text(TASKS)
    (tmp_path / "code" / "mine.yaml").write_text(
        "environments: {d: {kind: own, place: 'doubles:Doubles', tools: [double]}}\n"
        "rollout: {tools: {own: {double: 'doubles:double'}}}\n"
    )
    with model_server(act("submit_final_answer(double(7))")) as server:
        line = ["evaluate", "code/mine.yaml", "--endpoint", f"{server.url}/v1", "--samples", str(samples), "--json"]
        done = subprocess.run([str(NBRL), *line], cwd=tmp_path, env=mark("own"), capture_output=True, text=True, check=False)
    summary = summary_of(done)
    assert (summary["trajectories"], summary["metrics"]["success"]) == (35 * samples, pytest.approx(1 / 35))
    assert (tmp_path / ".nbrl/prefect").exists() == (samples == 2)
    check_gone("own")
