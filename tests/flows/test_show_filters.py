"""Which trajectories `nbrl show` lists, and those of one question side by side."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nbrl.flows.cli.commands import app
from nbrl.flows.display.listing import choose
from nbrl.flows.display.wanted import ListedTrajectory, Wanted
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from tests.tasks.comparison import made
from tests.tasks.storing import stored as store

LONG = "a-question-whose-id-takes-more-columns-than-half-of-a-usual-terminal-has"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A run of two iterations with evaluations after 0 and 2 updates, and an evaluation of its own."""
    storage = made.storage_in(tmp_path)
    asked = [{**row, "ability": ability} for row, ability in zip(made.QUESTIONS, ["a", "a", "b", "b"], strict=True)]
    made.run(storage, "r", {0: [0, 0, 0, 0], 2: [0.5, 1, 0, 0]}, [0.1, 0.2], asked)
    made.evaluation(storage, "e", [1, 1, 0, 0], asked)
    return storage


def chosen(storage: Storage, run: str = "r", limit: int = 100, **wanted: Any) -> list[ListedTrajectory]:
    return choose(storage, run, limit, Wanted(**wanted))


def show(storage: Storage, *words: str, columns: str = "120") -> Any:
    return CliRunner().invoke(app, ["show", *words, "--root", storage.settings.root], env={"COLUMNS": columns})


def test_the_newest_come_first_and_evaluations_after_the_iteration_that_made_their_policy(storage: Storage) -> None:
    places = list(dict.fromkeys(each.where for each in chosen(storage)))
    assert places == ["eval 2", "iter 2", "iter 1", "eval 0"]


def test_every_filter_leaves_what_it_says(storage: Storage) -> None:
    assert {each.where for each in chosen(storage, held_out=True)} == {"eval 2", "eval 0"}
    assert {each.where for each in chosen(storage, iteration=1)} == {"iter 1"}
    assert {each.where for each in chosen(storage, updates=0)} == {"eval 0"}
    assert {each.ability for each in chosen(storage, ability="b")} == {"b"}
    assert {each.status for each in chosen(storage, status="no_answer")} == {"no_answer"}
    assert len(chosen(storage, environment="world")) == len(chosen(storage)) == 16
    assert len(chosen(storage, "e", held_out=True)) == 4


def test_best_and_worst_are_by_reward(storage: Storage) -> None:
    best = chosen(storage, held_out=True, best=2)
    assert [(each.id, each.reward, each.success) for each in best] == [("q1-0", 1.0, 1.0), ("q0-0", pytest.approx(0.6), 0.5)]
    assert [each.reward for each in chosen(storage, worst=3, updates=2)] == [0.2, 0.2, pytest.approx(0.6)]


def test_rewards_and_steps_are_columns(storage: Storage) -> None:
    done = show(storage, "r@2", "--best", "1")
    assert "q1-0 eval 2 1.000 1 1 answered 1 What is 1?" in " ".join(done.stdout.split())


def test_what_was_not_scored_has_no_reward(storage: Storage) -> None:
    for key in storage.list("evaluations/e"):
        if key.endswith("/rewards.parquet"):
            storage.delete(key)
    assert [each.reward for each in chosen(storage, "e")] == [None] * 4
    assert chosen(storage, "e", best=3) == []


def test_a_group_stands_side_by_side_with_whole_ids(storage: Storage) -> None:
    asked = made.questions([{**made.QUESTIONS[0], "id": LONG}] * 3)
    said = made.trajectories(asked, [1, 0, 1])
    rows = [{**row, "id": f"{LONG}-{number}", "sample": number} for number, row in enumerate(said.to_pylist())]
    table = type(said).from_pylist(rows, schema=said.schema)
    store(storage, "evaluations/g/evaluations/000000/e0001-abcdef/round-0/trajectories.index.parquet", table)
    storage.write_table("evaluations/g/evaluations/000000/e0001-abcdef/round-0/rewards.parquet", made.rewards(table, [1, 0, 1]))
    for columns in ("40", "80", "300"):
        done = show(storage, "g", "--group", LONG, columns=columns)
        assert done.exit_code == 0, done.output
        assert [done.stdout.count(f" {LONG}-{number} ") for number in range(3)] == [1, 1, 1]
    words = " ".join(done.stdout.split())
    assert "reward 1.000 0.200 1.000" in words
    assert "answer 0 (none) 0" in words
    assert "I count I count I count" in words


def test_a_group_is_found_by_one_of_its_trajectories_and_the_newest_is_shown(storage: Storage) -> None:
    done = show(storage, "r", "--group", "q1-0")
    assert "q1 eval 2" in " ".join(done.stdout.split())
    assert "also in iter 2, iter 1, eval 0" in done.stdout
    assert "q1 iter 1" in " ".join(show(storage, "r", "--group", "q1", "--iteration", "1").stdout.split())


def test_a_trajectory_of_one_evaluation_is_shown_alone(storage: Storage) -> None:
    assert show(storage, "r/q1-0").stdout.count("What is 1?") == 2
    assert show(storage, "r@0/q1-0").stdout.count("What is 1?") == 1


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"ability": "c"}, "no trajectory of 'r' has ability 'c'; there are: a, b"),
        ({"environment": "wrold"}, "no trajectory of 'r' has environment 'wrold'; did you mean 'world'?"),
        ({"iteration": 3}, "'r' has no trajectories of iteration 3; it has those of 1 to 2"),
        ({"updates": 1}, "'r' has no evaluation after 1 updates; it has those after 0, 2"),
        ({"status": "timeout"}, "no trajectory of 'r' has status 'timeout'"),
        ({"updates": 2, "ability": "b", "status": "answered"}, "is all of what was asked for"),
    ],
)
def test_what_is_not_there_is_one_sentence(storage: Storage, wanted: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("?", r"\?")):
        chosen(storage, **wanted)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["r", "--status", "answerd"], "did you mean 'answered'?"),
        (["r", "--best", "1", "--worst", "1"], "leave one of them out"),
        (["r", "--iteration", "1", "--held-out"], "leave one of them out"),
        (["r@0", "--iteration", "1"], "leave one of them out"),
        (["r", "--group", "zz"], "has no group or trajectory 'zz'"),
        (["r", "--group", "q1", "--best", "1"], "--group shows all trajectories"),
        (["r/q1-0", "--best", "1"], "with an id, only @N"),
        (["--held-out"], "name one"),
        (["e", "--iteration", "1"], "it has no iterations"),
        (["rr"], "did you mean 'r'?"),
        (["r@x"], "names no checkpoint"),
    ],
)
def test_options_that_cannot_act_are_one_sentence(storage: Storage, words: list[str], said: str) -> None:
    done = show(storage, *words)
    assert (done.exit_code, done.stdout, done.stderr.count("nbrl:")) == (1, "", 1)
    assert said in " ".join(done.stderr.split())


def test_a_damaged_table_is_one_sentence(storage: Storage) -> None:
    key = next(key for key in storage.list("runs/r/evaluations/000002") if key.endswith("/rewards.parquet"))
    storage.write_bytes(key, b"nothing")
    done = show(storage, "r")
    assert (done.exit_code, done.stdout, done.stderr.count("nbrl:")) == (1, "", 1)
    assert "is damaged: it is no table" in " ".join(done.stderr.split())
