"""A configuration and its judge: each needs the other, and the key is there before work starts."""

import json
from pathlib import Path

import pytest

from nbrl.tasks.environments.datasets.catalogue import CATALOGUE
from nbrl.tasks.environments.kinds import question_files
from nbrl.tasks.environments.kinds.question_files import HubEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.preflight import preflight, rehearse
from nbrl.tasks.runs.recipes import load

JUDGE = ["reward.judge.base_url=http://127.0.0.1:9/v1", "reward.judge.name=m"]


def questions(folder: Path, rule: str) -> Path:
    path = folder / f"{rule}.jsonl"
    path.write_text(json.dumps({"id": "a", "question": "Which year?", "answers": ["1844"], "rule": rule}))
    return path


def judged(folder: Path, rule: str = "judge", train: str = "qa") -> list[str]:
    """Overrides that add questions to evaluate on by a rule."""
    files = f"{{kind: files, train: {questions(folder, train)}, held_out: {questions(folder, rule)}, weight: 0.01}}"
    return [f"environments.mine={files}"]


def test_the_rule_needs_a_judge_and_the_judge_the_rule(tmp_path: Path) -> None:
    check_config(load("tiny-cpu", [*judged(tmp_path), *JUDGE]))
    check_config(load("tiny-cpu", [*judged(tmp_path, rule="qa", train="judge"), *JUDGE]), "evaluate")
    for purpose in ("train", "evaluate"):
        with pytest.raises(ConfigError, match=r"no model that grades their answers is named; set reward\.judge\.base_url"):
            check_config(load("tiny-cpu", judged(tmp_path)), purpose)
        with pytest.raises(ConfigError, match=r"reward\.judge has no effect, for no question has the rule judge"):
            check_config(load("tiny-cpu", [*judged(tmp_path, rule="qa"), *JUDGE]), purpose)


@pytest.mark.process
def test_a_key_that_is_not_set_is_refused_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = [*judged(tmp_path), *JUDGE, f"home={tmp_path}/home", f"storage.root={tmp_path}/storage"]
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for purpose in ("train", "evaluate"):
        with pytest.raises(
            ConfigError, match=r"^reward\.judge\.key: the environment variable OPENAI_API_KEY holds no usable key"
        ):
            preflight(load("tiny-cpu", overrides), purpose)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    config = load("tiny-cpu", overrides)
    preflight(config, "train")
    assert rehearse(config) == ["reward.judge: http://127.0.0.1:9/v1 is first asked when there are answers to grade"]
    monkeypatch.delenv("OPENAI_API_KEY")
    preflight(load("tiny-cpu", [*overrides, "reward.judge.key=null"]), "train")


def test_what_changes_no_grade_may_change_when_a_run_goes_on(tmp_path: Path) -> None:
    found = decisive(load("tiny-cpu", [*judged(tmp_path), *JUDGE]).reward)
    assert {key for key in found if key.startswith("judge.")} == {"judge.name", "judge.max_tokens", "judge.rubric"}


def test_a_known_data_set_may_be_judged_and_keeps_its_own_rule_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question_files, "from_hub", lambda name, split: iter([{"problem": "Which year?", "answer": "1844"}]))
    simple = {"kind": "hub", "dataset": "simple-qa", "weight": 0, "train": None}
    for change, rule in [({}, "qa"), ({"rule": "judge"}, "judge")]:
        made = HubEnvironment.model_validate(simple | change)
        assert made.load("environments.e").held_out["rule"].to_pylist() == [rule]
        assert HubEnvironment.model_validate(made.model_dump(mode="json")) == made  # as a run that goes on reads it
    with pytest.raises(ValueError, match="rule of simple-qa are known; leave them out"):
        HubEnvironment.model_validate(simple | {"rule": "number"})
    assert CATALOGUE["simple-qa"].rule == "qa"
