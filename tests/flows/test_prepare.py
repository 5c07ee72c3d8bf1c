"""`nbrl prepare` with a real Prefect server, a real Ray cluster and an HTTP server that speaks the OpenAI chat API."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from nbrl.infra.arrow_files import read_parquet
from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.prepare.rate import difficulty
from nbrl.tasks.prepare.settings import DifficultySettings
from nbrl.tasks.prepare.stages import read_answers
from tests.flows.typed import nbrl
from tests.tasks.prepare.doubles import evaluated, question, table
from tests.tasks.prepare.rater import Rater, rating

pytestmark = pytest.mark.e2e

SHIPS, TOWNS = 24, 8
ANSWERS = {f"How many masts did the ship with the number {n * 7919 + 13} have?": str(n) for n in range(SHIPS)}
TOLD = {f"Who was the first mayor of the town on island {n * n * 97 + 5}?": f"Mayor {n}" for n in range(TOWNS)}
RATED = {
    "Which opinion on the old harbour is right?": "mine",
    "How warm is the water of the bay today?": "cold",
    "Which garbled word did the wreck of the Adler have on its bell?": "amen",
    "Which hopeless voyage ended at the cape in winter?": "Adler",
    "Which broken mast was sold at the autumn market?": "the third",
    "Which rusty anchor lay in the garden of the customs house for years?": "the small one",
    "Which fenced garden belonged to the keeper of the lighthouse?": "the north one",
}
EVALUATED = "Which rusted anchor lay in the garden of the customs house for years?"


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines(tmp_path / "ships.jsonl", [{"problem": question, "solution": answer} for question, answer in ANSWERS.items()])
    told = [{"id": n, "question": question, "answers": [answer]} for n, (question, answer) in enumerate((TOLD | RATED).items())]
    told += [{"id": 100, "question": "Who?", "answers": None}, {"id": 101, "question": " ", "answers": ["x"]}]
    told += [{"id": 102, "question": f"{next(iter(ANSWERS)).upper()} ", "answers": ["0"]}]
    lines(tmp_path / "told.jsonl", told)
    lines(tmp_path / "eval.jsonl", [{"question": EVALUATED}])
    known = [{"question": question, "success": success} for question in ANSWERS | TOLD | RATED for success in (0.0, 1.0)]
    evaluated(tmp_path / "storage", "hard", known)
    return tmp_path


def recipe(folder: Path, server: Rater) -> Path:
    rater = {"base_url": server.url, "name": "double", "key": "RATER_KEY"}
    settings = {
        "sources": [
            {"name": "ships", "path": "ships.jsonl", "licence": "MIT", "rule": "number"}
            | {"columns": {"question": "problem", "answers": "solution"}},
            {"name": "told", "path": "told.jsonl", "licence": "CC0"},
        ],
        "evaluation": [{"name": "held", "path": "eval.jsonl"}],
        "rate": rater | {"max_unrated": 0.1},
        "difficulty": {"evaluation": "hard", "root": "storage", "max_pass_rate": 0.5},
        "ray": {"num_cpus": 2},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def command(folder: Path, server: Rater, out: str) -> list[str]:
    return ["prepare", str(recipe(folder, server)), "--out", str(folder / out), "--home", str(folder / "home")]


@pytest.fixture
def server() -> Iterator[Rater]:
    with rating() as server:
        yield server


@pytest.mark.more
def test_questions_are_merged_rated_and_dealt_out_and_the_same_command_finds_them(folder: Path, server: Rater) -> None:
    environment = {"RATER_KEY": "key-of-the-rater", "COLUMNS": "200"}
    whole = nbrl(*command(folder, server, "whole"), **environment)
    assert whole.returncode == 0, whole.stderr
    server.status = 500
    repeated = nbrl(*command(folder, server, "whole"), **environment)
    assert repeated.returncode == 0, repeated.stderr
    assert repeated.stdout == whole.stdout
    looked_at(folder / "whole", whole.stdout)


def looked_at(out: Path, said: str) -> None:
    """What the whole preparation made."""
    card = json.loads((out / "card.json").read_text())
    dropped = {each["stage"]: each["dropped"] for each in card["stages"]}
    assert dropped == {
        "unify": {"no answer": 1, "no question": 1},
        "deduplicate": {"duplicate": 1},
        "decontaminate": {"near an evaluation question": 1},
        "rate": {"unrated": 1, "not objective enough": 1, "not stable enough": 1},
        "difficulty": {},
        "split": {},
    }
    total = SHIPS + TOWNS + len(RATED) + 3
    assert total == card["stages"][0]["in"]
    assert sum(card["questions"].values()) == total - 7
    assert card["ratings"] == {
        "objectivity": {"-1": 1, "1": total - 6},
        "stability": {"-1": 1, "1": total - 6},
        "pass_rate": {"0.5": total - 7},
    }
    assert [source["licence"] for source in card["sources"]] == ["MIT", "CC0"]
    assert card["evaluation"][0]["dropped"] == 1
    train = read_questions(out / "train.parquet", {}, "qa")
    assert len(train) == card["questions"]["train"] > 20
    assert {row["rule"] for row in train.to_pylist() if row["source"] == "ships"} == {"number"}
    gone = pq.read_table(out / "dropped.parquet").to_pylist()
    assert len(gone) == 7
    (duplicate,) = [row for row in gone if row["dropped"] == "duplicate"]
    assert duplicate["id"] == "told:102"
    assert duplicate["detail"].startswith("ships:q-")
    for text in (
        "not stable enough",
        "1 near an evaluation question",
        "card.md",
        "environments={prepared: {kind: files, train: ",
    ):
        assert text in said
    assert "key-of-the-rater" not in "".join(path.read_bytes().decode("latin-1") for path in out.rglob("*") if path.is_file())


def test_what_cannot_work_is_said_before_anything_starts(folder: Path, server: Rater) -> None:
    line = command(folder, server, "out")
    for arguments, environment, words in [
        (line, {}, "RATER_KEY"),
        ([*line, "--set", "split.sed=1"], {"RATER_KEY": "k"}, "did you mean 'seed'"),
        ([*line, "--set", "evaluation=[{name: e, path: none.csv}]"], {"RATER_KEY": "k"}, "there is no file"),
        (["prepare", "none.yaml", "--out", str(folder / "out")], {}, "there is no recipe"),
    ]:
        done = nbrl(*arguments, **environment)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr
    dry = nbrl(*line, "--dry-run", RATER_KEY="k")
    assert "source told: 18 rows, of which 16 have a question and an answer" in dry.stdout
    assert not (folder / "out").exists()
    assert not (folder / "home").exists()
    assert server.begun == {}


@pytest.mark.more
def test_the_answers_of_an_evaluation_say_how_hard_questions_are(tmp_path: Path) -> None:
    lines(tmp_path / "asked.jsonl", [{"question": text, "answers": answer} for text, answer in ANSWERS.items()])
    environments = f"{{candidates: {{kind: files, weight: 0, held_out: {tmp_path / 'asked.jsonl'}}}}}"
    settings = [f"environments={environments}", f"storage.root={tmp_path / 'storage'}", f"home={tmp_path / 'home'}"]
    flags = [part for each in settings for part in ("--set", each)]
    with rating(ANSWERS, knows=1) as server:
        ask = ["--endpoint", server.url, "--model", "double", "--mode", "direct", "--samples", "4", "--name", "hard"]
        done = nbrl("evaluate", "tiny-cpu", *ask, *flags)
        assert done.returncode == 0, done.stderr
    chosen = DifficultySettings(evaluation="hard", root=str(tmp_path / "storage"))
    rows = table(*(question(f"a:{answer}", text, answer) for text, answer in ANSWERS.items()))
    rated = difficulty(rows, chosen, read_parquet(io.BytesIO(read_answers(chosen))))
    assert rated["pass_rate"].to_pylist() == [0.25] * SHIPS
