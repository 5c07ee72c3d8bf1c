"""Runs, their evaluations and evaluations of their own are compared from the storage alone."""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from typer.testing import CliRunner

from nbrl.flows.cli.commands import app
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking, TrackingSettings
from nbrl.tasks.comparison import sigmoid
from nbrl.tasks.comparison.compare import Comparison, compare, sides_of
from nbrl.tasks.comparison.page import draw, page
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.tracking.evaluations import EVALUATION
from nbrl.tasks.tracking.parameters import identity
from tests.tasks.comparison import made

OTHERS = [{"id": f"q{number}", "question": f"Who is {number}?", "answers": [str(number)]} for number in range(4)]
RISING = [0.1, 0.15, 0.3, 0.5, 0.65, 0.72, 0.76, 0.78]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """Two runs whose evaluations differ, a long one, one without any, and evaluations on the same and on other questions."""
    folder = tmp_path_factory.mktemp("compared")
    storage = made.storage_in(folder / "s")
    home = f"home={folder / 'home'}"
    made.run(storage, "slow", {0: [0, 0, 0, 0], 2: [1, 0, 0, 0]}, [0.0, 0.2], overrides=[home])
    spent = {"cpu/rollout": 1.5, "gpu/rollout": 4.0}
    made.run(
        storage, "fast", {0: [0, 0, 0, 0], 1: [1, 1, 1, 0], 2: [1, 1, 0, 0]}, [0.1, 0.6], (*made.QUESTIONS,),
        ["update.lr=0.5", home], spent,
    )  # fmt: skip
    made.run(storage, "long", {0: [0, 0, 0, 0], 8: [1, 1, 1, 0]}, RISING, overrides=[home])
    made.run(storage, "young", {}, overrides=[home])
    made.evaluation(storage, "batch", [1, 1, 1, 1], overrides=[home])
    made.evaluation(storage, "elsewhere", [1, 1, 1, 1], OTHERS, overrides=[home])
    return storage


@pytest.fixture
def storage(stored: Storage, tmp_path: Path) -> Storage:
    """A copy that a test may change."""
    shutil.copytree(stored.settings.root, tmp_path / "s")
    return made.storage_in(tmp_path / "s")


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sigmoid, "RESAMPLES", 20)


def compared(storage: Storage, *labels: str, indifferent: bool = False) -> Comparison:
    return compare(sides_of(storage, labels), indifferent)


def nbrl(storage: Storage, *words: str) -> Any:
    return CliRunner().invoke(app, ["compare", *words, "--root", storage.settings.root], env={"COLUMNS": "200"})


def test_final_and_best_scores_have_intervals_and_the_final_ones_are_paired(storage: Storage) -> None:
    found = compared(storage, "slow", "fast")
    slow, fast = found.sides
    assert (slow.final.updates, slow.final.estimate.value) == (2, 0.25)
    assert (fast.final.updates, fast.final.estimate.value) == (2, 0.5)
    assert (fast.best.updates, fast.best.estimate.value, fast.best.estimate.questions) == (1, 0.75, 4)
    assert fast.best.estimate.low < 0.75 < fast.best.estimate.high
    (pair,) = found.pairs
    assert (pair.first, pair.second, pair.common) == ("slow", "fast", 4)
    assert pair.difference is not None
    assert pair.difference.value == 0.25


def test_a_run_after_some_updates_ends_there(storage: Storage) -> None:
    (side, _) = compared(storage, "fast@1", "slow").sides
    assert (side.final.updates, side.final.estimate.value, side.best.updates) == (1, 0.75, 1)
    assert (side.cost.iterations, side.cost.trajectories, len(side.rollouts), len(side.held_out)) == (1, 4, 1, 2)


def test_three_are_each_compared_with_the_first(storage: Storage) -> None:
    found = compared(storage, "batch", "fast", "elsewhere")
    assert [(pair.first, pair.second, pair.common) for pair in found.pairs] == [("batch", "fast", 4), ("batch", "elsewhere", 0)]
    assert found.pairs[1].difference is None
    assert found.sides[0].kind == "evaluations"
    assert (found.sides[0].cost.processor_seconds, found.sides[0].cost.gpu_seconds) == ({"evaluate": 5.0}, {})
    assert (found.sides[0].cost.seconds, found.sides[0].cost.sampled_tokens) == ({"evaluate": 7.0}, 4 * made.TOKENS)
    assert found.sides[0].fit is None


def test_cost_is_summed_by_node(storage: Storage) -> None:
    slow, fast = (side.cost for side in compared(storage, "slow", "fast").sides)
    assert (fast.iterations, fast.trajectories, fast.sampled_tokens) == (2, 8, 8 * made.TOKENS)
    assert fast.seconds == slow.seconds == {"rollout": 4.0, "iteration": 6.0}
    assert (fast.processor_seconds, fast.gpu_seconds) == ({"rollout": 3.0}, {"rollout": 8.0})
    assert slow.processor_seconds == {}


def test_only_settings_that_differ_are_shown_and_indifferent_ones_on_request(storage: Storage) -> None:
    (setting,) = compared(storage, "slow", "fast").settings
    assert (setting.key, setting.values, setting.decides) == ("update.lr", ("0.0006", "0.5"), True)
    keys = {each.key: each.decides for each in compared(storage, "slow", "long", indifferent=True).settings}
    assert keys == {"iterations": False}


def test_curves_are_over_the_tokens_that_were_spent_before(storage: Storage) -> None:
    (fast, _) = compared(storage, "fast", "slow").sides
    spent = 4 * made.TOKENS
    assert fast.rollouts == ((0, 0.1), (spent, 0.6))
    assert fast.held_out == ((0, 0.0), (spent, 0.75), (2 * spent, 0.5))


def test_rollouts_are_fitted_where_there_are_few_evaluations(storage: Storage) -> None:
    long, fast = compared(storage, "long", "fast").sides
    assert long.fit is not None
    assert fast.fit is not None
    assert (long.fitted, long.fit.points, long.fit.is_determined) == ("rollouts", 8, True)
    assert (fast.fit.points, fast.fit.is_determined) == (2, False)
    made.run(storage, "seen", {number: [1, *[number / 8] * 3] for number in range(9)}, RISING)
    seen = compared(storage, "seen", "fast").sides[0]
    assert seen.fit is not None
    assert (seen.fitted, seen.fit.points) == ("held-out", 9)


def test_the_picture_holds_all_curves(storage: Storage) -> None:
    pictures = [draw(compared(storage, *labels).sides) for labels in (("slow", "batch"), ("long", "fast", "batch"))]
    shapes = [matplotlib.image.imread(io.BytesIO(each), "png").shape for each in pictures]
    assert shapes[0] == shapes[1]
    assert shapes[0][0] > 400
    assert pictures[0] != pictures[1]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["fast"], "needs at least two"),
        (["fast", "fast"], "'fast' cannot be compared with itself"),
        (["fast", "fast@2"], "'fast' and 'fast@2' are the same evaluation"),
        (["fast", "fats"], "there is no run or evaluation 'fats' in .*; did you mean 'fast'?"),
        (["fast", "young"], "run 'young' has no finished evaluation yet"),
        (["slow", "fast@7"], "run 'fast' has no evaluation after 7 updates; it has those after 0, 1, 2"),
        (["slow", "fast@x"], "names no checkpoint"),
        (["slow", "batch@1"], "'batch' is an evaluation, which has no updates"),
        (["slow", "../x"], "a run cannot be named"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(storage: Storage, labels: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        sides_of(storage, labels)
    assert "\n" not in str(raised.value)
    done = nbrl(storage, *labels)
    assert (done.exit_code, done.stdout, done.stderr.count("nbrl:")) == (1, "", 1)


@pytest.mark.parametrize("what", ["record.json", "run.json", "rewards.parquet", "evaluate", "held_out.parquet"])
def test_a_damaged_file_is_one_sentence(storage: Storage, what: str) -> None:
    keys = [key for key in storage.list("runs/fast") if what in key and ("/evaluations/" in key or what != "rewards.parquet")]
    for key in keys:
        storage.write_bytes(key, b"{ nothing")
    done = nbrl(storage, "slow", "fast")
    assert (done.exit_code, done.stdout, done.stderr.count("nbrl:")) == (1, "", 1)
    assert what.partition(".")[0] in done.stderr


def test_a_lost_file_is_one_sentence_with_a_remedy(storage: Storage) -> None:
    storage.delete_keys(key for key in storage.list("runs/fast/evaluations") if key.endswith("rewards.parquet"))
    done = nbrl(storage, "slow", "fast")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "'fast' cannot be compared: " in done.stderr
    assert "bring the file back from a copy" in done.stderr


def test_an_evaluation_that_goes_on_is_not_compared(storage: Storage) -> None:
    storage.delete(EvaluationLayout("batch").summary)
    with pytest.raises(ConfigError, match="evaluation 'batch' has not finished yet"):
        sides_of(storage, ["slow", "batch"])


def test_the_command_prints_scores_differences_settings_and_costs(storage: Storage, tmp_path: Path) -> None:
    picture = tmp_path / "all.png"
    done = nbrl(storage, "slow", "fast", "elsewhere", "--picture", str(picture))
    assert done.exit_code == 0, done.output
    words = " ".join(done.stdout.split())
    assert "fast − slow: +0.250 [" in words
    assert "on 4 common questions" in words
    assert "elsewhere and slow have no question in common" in words
    assert "fast: ceiling by the sigmoid of its rollouts (2 points): not determined: 2 points, and a fit needs 6" in words
    assert "update.lr yes 0.0006 0.5" in words
    assert "processor-s rollout – 3.0 –" in words
    assert "GPU-s rollout – 8.0 –" in words
    assert "MLflow no page, for there is no MLflow database in" in words
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_command_prints_json(storage: Storage) -> None:
    done = nbrl(storage, "slow", "fast", "--json")
    found = json.loads(done.stdout)
    assert [side["label"] for side in found["sides"]] == ["slow", "fast"]
    assert found["pairs"][0]["common"] == 4
    assert found["settings"][0]["key"] == "update.lr"
    assert found["mlflow"]["address"] == ""


@pytest.mark.parametrize(("name", "words"), [("no/x.png", "there is no folder"), ("x.jpg", "--picture writes a PNG")])
def test_a_picture_that_cannot_be_written_is_one_error_before_the_work(
    storage: Storage, tmp_path: Path, name: str, words: str
) -> None:
    done = nbrl(storage, "slow", "fast", "--picture", str(tmp_path / name))
    assert (done.exit_code, done.stdout) == (1, "")
    assert words in done.stderr


@pytest.mark.process  # MLflow asks the system where it is
def test_mlflows_page_compares_the_same_runs(storage: Storage, tmp_path: Path) -> None:
    home = f"home={tmp_path / 'home'}"
    for name in ("one", "two"):
        made.run(storage, name, {0: [1, 0, 0, 0], 1: [1, 1, 0, 0]}, [0.1], overrides=[home])
    made.evaluation(storage, "third", [1, 1, 1, 1], overrides=[home])
    sides = sides_of(storage, ["one", "two", "third"])
    tracking = Tracking(TrackingSettings(), Home(tmp_path / "home"))
    ids = []
    for side in sides[:2]:
        assert side.run is not None
        ids.append(tracking.start_run(side.run.name, {}, identity(side.run)))
    assert page(sides).why == "MLflow does not have all of them; `nbrl track NAME` delivers one"
    ids.append(tracking.start_run("third", {}, EVALUATION))
    listed = "%2C".join(f"%22{each}%22" for each in ids)
    asked = f"runs=%5B{listed}%5D&experiments=%5B%22{tracking.experiment_id}%22%5D&workflowType=machine_learning"
    assert page(sides).address == f"/#/compare-runs?{asked}"
    assert page(sides_of(storage, ["two", "two@0"])).why == "they are one run in MLflow"


def test_a_server_that_does_not_answer_is_one_line(storage: Storage) -> None:
    for name in ("one", "two"):
        made.run(storage, name, {0: [1, 0, 0, 0]}, overrides=["tracking.uri=http://127.0.0.1:9"])
    why = page(sides_of(storage, ["one", "two"])).why
    assert why.startswith("MLflow cannot be asked: no MLflow server answers at tracking.uri http://127.0.0.1:9")
    assert "\n" not in why
