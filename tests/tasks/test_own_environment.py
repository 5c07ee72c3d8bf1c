"""An environment of one's own: its questions, and its scores from a confined process."""

import sys
from pathlib import Path
from typing import Any

import pytest

from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.errors import ConfigError, RewardError
from nbrl.tasks.nodes.reward import check_scored, facet_means
from nbrl.tasks.reward.rules import confined
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import judge
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.runs.preflight import preflight
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.selection.judge import by_group

SOURCE = '''
import os
import socket
import time

from {module}.words import WORDS
from nbrl.tasks.own import Question, Score, Tasks


class Echo(Tasks):
    """Say the word, or follow it: words that begin with ! are orders to the scorer itself."""

    def __init__(self, loud: bool = False) -> None:
        self.loud = loud
        os.write(1, b"printed as it is made")

    def questions(self, split):
        for word in WORDS[split]:
            yield Question(f"Say {{word}}.", reference={{"word": word}}, ability="echo")
        yield Question("How much is 2 + 2?", answers=["4"], rule="number", ability="sums")

    def corpus(self):
        return ["A word is said by submitting it."]

    def score(self, trajectory, reference):
        answer = trajectory.answer or ""
        if answer == "!raise":
            raise ValueError("I cannot read this")
        if answer == "!half":
            raise ValueError("\\ud800")
        if answer == "!huge":
            return Score(success=True, steps=[1e308, 1e308])
        if answer == "!hang":
            time.sleep(600)
        if answer == "!slow":
            time.sleep({cpu} + 1)
        while answer == "!spin":
            pass
        if answer == "!exit":
            os._exit(0)
        if answer == "!host":
            reached = [path for path in ({home!r}, "/etc/shadow", "/root/.ssh") if os.path.exists(path)]
            return Score(success=bool(reached))
        if answer == "!network":
            with socket.socket() as one:
                one.settimeout(1)
                one.connect(("1.1.1.1", 53))
        if answer == "!steps":
            return Score(success=True, steps=[0.25, 0.75], facets={{"seen": 2}})
        if answer == "!many":
            return Score(success=True, steps=[1.0] * 9)
        if answer == "!value":
            return Score(success=True, value=3.0)
        if answer == "!nan":
            return Score(success=True, value=float("nan"))
        if answer == "!sum":
            return Score(success=True, value=(0.1 + 0.2) / 0.3, facets={{"pass@1": 1, "a/b": float("nan"), "..": 1}})
        if reference["word"] == "a,b":
            first, second = answer.split(",")
            return Score(success=(first, second) == ("a", "b"))
        if ";" in reference["word"]:
            return Score(success=len(answer.split(";")[1]) > 9)
        if reference["word"] == "milk":
            raise LookupError("nothing is scored")
        said = answer.upper() if self.loud else answer
        cells = sum(step.cell_status == "ok" for step in trajectory.steps)
        return Score(success=said == reference["word"], value=0.5 if said else 0.0, facets={{"cells": cells}})
'''


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the class is: in a package of two modules, on the path of this process alone."""
    name = f"echo_{tmp_path.name.replace('-', '_')}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "words.py").write_text('WORDS = {"train": ["tea", "milk"], "held_out": ["jam"]}\n')
    (package / "echo.py").write_text(SOURCE.format(module=name, home=str(tmp_path), cpu=confined.CPU_S))
    monkeypatch.syspath_prepend(str(tmp_path))
    return f"{name}.echo:Echo"


def environment(place: str, **settings: Any) -> OwnEnvironment:
    return OwnEnvironment(kind="own", place=place, settings=settings)


def rows(place: str, *answers: str | None, **settings: Any) -> list[dict[str, Any]]:
    """Trajectories of two steps that answer the first question."""
    (question, *_) = environment(place, **settings).load("environments.e").train.to_pylist()
    step = {"kind": "cell", "think": "I think about it", "code": "print(1 + 1)", "observation": "2", "cell_status": "ok"}
    step |= {"malformed": "", "outputs": [{"kind": "stream", "text": "2", "image": b""}]}
    return [
        question | {"id": f"t{n}", "group": "g", "status": "answered", "answer": answer, "steps": [step, step], "files": []}
        for n, answer in enumerate(answers)
    ]


def test_its_questions_are_those_of_the_class_with_ids_references_and_rules(place: str) -> None:
    tables = environment(place).load("environments.e")
    assert tables.train.schema == tables.held_out.schema == SCHEMA
    assert tables.train.select(["id", "question", "ability", "rule", "answers"]).to_pylist() == [
        {"id": "train-000000", "question": "Say tea.", "ability": "echo", "rule": "own", "answers": []},
        {"id": "train-000001", "question": "Say milk.", "ability": "echo", "rule": "own", "answers": []},
        {"id": "train-000002", "question": "How much is 2 + 2?", "ability": "sums", "rule": "number", "answers": ["4"]},
    ]
    assert tables.corpus["passage"].to_pylist() == ["A word is said by submitting it."]
    assert "tea" in tables.train["reference"][0].as_py()


def test_its_source_is_that_of_the_whole_package(place: str) -> None:
    before = environment(place).source()
    words = Path(sys.path[0], place.partition(".")[0], "words.py")
    words.write_text(words.read_text() + "\n")
    after = environment(place).source()
    assert len({before, after, ""}) == 3


@pytest.mark.sandbox
def test_the_class_scores_trajectories_in_a_process_that_has_nothing_but_its_package(place: str) -> None:
    right, wrong, silent, steps, host, whole = judge(rows(place, "tea", "jam", None, "!steps", "!host", "!sum"))
    assert right == Judged(1.0, 0.5, 0.5, (), (("cells", 2.0),))
    assert wrong == Judged(0.0, 0.5, 0.5, (), (("cells", 2.0),))
    assert silent == Judged(0.0, 0.0, 0.0, (), (("cells", 2.0),))
    assert steps == Judged(1.0, 1.0, 1.0, (0.25, 0.75), (("seen", 2.0),))
    assert host.exact == 0.0
    assert whole == Judged(1.0, 1.0, 1.0, (), (("pass_at_1", 1.0),))
    assert judge(rows(place, "tea", loud=True))[0].exact == 0.0


@pytest.mark.more
@pytest.mark.sandbox
def test_a_question_that_the_class_cannot_score_sets_its_groups_aside_with_the_reason(place: str) -> None:
    asked = rows(place, "tea", "tea", "cocoa")
    asked[1:] = [row | {"reference": row["reference"].replace("tea", "milk")} for row in asked[1:]]
    assert [found.fault for found in judge(asked)] == ["", *["LookupError: nothing is scored"] * 2]
    scored = score_table(_table(asked[:2]), RewardSettings())
    assert by_group(scored)["fates"].to_pylist() == [["answered", "unscored"]]
    with pytest.raises(RewardError, match="failed on 1 of 2 trajectories, of which 20% are allowed; the first says: LookupError"):
        check_scored(scored)


@pytest.mark.more
@pytest.mark.sandbox
def test_a_trajectory_that_makes_the_class_fail_is_wrong(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "CPU_S", 2.0)
    monkeypatch.setattr(confined, "WALL_S", 10.0)
    failing = ("!raise", "!half", "!spin", "!hang", "!exit", "!network", "!nan", "!many", "!huge")
    assert judge(rows(place, *failing)) == [Judged(0.0, 0.0, value=0.0)] * len(failing)
    assert judge(rows(place, "!raise")) == [Judged(0.0, 0.0, value=0.0)]
    assert [found.value for found in judge(rows(place, "!value"))] == [1.0]  # what is beyond is cut


@pytest.mark.sandbox
def test_an_answer_that_a_class_cannot_read_is_wrong_where_it_can_read_another_one(place: str) -> None:
    asked = rows(place, "a,b", "a,c", "garbage", None)
    asked = [row | {"reference": row["reference"].replace("tea", "a,b")} for row in asked]
    assert [(found.exact, found.fault) for found in judge(asked)] == [(1.0, ""), (0.0, ""), (0.0, ""), (0.0, "")]
    other = asked[0] | {"answer": "x;y"}
    elsewhere = [row | {"reference": row["reference"].replace("a,b", "a;b")} for row in [other, asked[2]]]
    assert judge(elsewhere[1:])[0].fault == "IndexError: list index out of range"
    asked = [other | {"reference": other["reference"].replace("a,b", "c;d")}, elsewhere[1]]
    assert [(found.exact, found.fault) for found in judge(asked)] == [(0.0, ""), (0.0, "")]


@pytest.mark.sandbox
def test_time_on_the_clock_decides_no_score(place: str) -> None:
    (slow,) = judge(rows(place, "!slow"))
    assert (slow.fault, slow.partial) == ("", 0.5)


@pytest.mark.sandbox
def test_a_class_that_needs_more_than_its_own_package_is_refused_before_work_starts(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = [
        f"environments={{e: {{kind: own, place: {place!r}, tools: []}}}}",
        "rollout.prompts=2",
        f"storage.root={tmp_path}/r",
    ]
    preflight(load("tiny-cpu", settings), "evaluate")
    top = place.partition(".")[0]
    (tmp_path / f"beside_{top}.py").write_text("SALT = 1\n")
    module = tmp_path / top / "echo.py"
    module.write_text(f"import beside_{top}\n{module.read_text()}")
    for name in [name for name in sys.modules if name.startswith(top)]:
        monkeypatch.delitem(sys.modules, name)
    refusal = rf"environments\.e: {place} cannot be made in the sandbox .*No module named 'beside_{top}'.*its own package"
    with pytest.raises(ConfigError, match=refusal):
        preflight(load("tiny-cpu", settings), "evaluate")


@pytest.mark.sandbox
def test_it_may_pay_each_step_and_report_facets(place: str) -> None:
    settings = RewardSettings(qa=1.0, format=0.0, execution=0.0)
    scored = score_table(_table(rows(place, "!steps", "tea")), settings)
    paid, last = scored["step_rewards"].to_pylist()
    assert paid == [0.25, 0.75]
    assert last == [0.0, 0.5]
    metrics = {name: metric.value for name, metric in facet_means(scored).items()}
    assert metrics["reward/success/e/echo"] == 1.0
    assert metrics["reward/own/seen/e"] == 2.0
    assert metrics["reward/unscored"] == 0.0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"place": "no_such_module:Echo"}, "the module no_such_module cannot be imported"),
        ({"place": "json:JSONDecoder"}, "json:JSONDecoder is no subclass of"),
        ({"settings": {"quiet": 1}}, "environments.e.settings: .* refuses them: TypeError"),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_with_what_to_do(place: str, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        environment(place).model_copy(update=change).load("environments.e")


def test_a_class_that_is_not_in_its_module_names_the_nearest(place: str) -> None:
    with pytest.raises(ConfigError, match="has no 'Ecko'; did you mean 'Echo'"):
        environment(place.replace("Echo", "Ecko")).load("environments.e")


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist([row | {"environment": "e"} for row in rows])
