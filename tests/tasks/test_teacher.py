"""A teacher is checked before work starts, and is the same when a run is continued."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.teacher import check_teacher, teacher_digest

TINY = Path(__file__).parents[2] / "infra/policies/tiny"


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TINY, tmp_path / "teacher"))


def config_of(tmp_path: Path, teacher: str) -> RunConfig:
    loss = f"update.loss={{kind: distill, teacher: {teacher}}}"
    places = [f"home={tmp_path}", f"storage.root={tmp_path}/root"]
    return load("tiny-cpu", [*places, loss, "select.drop_rate=0", "environments.world.train=8"])


def changed(path: Path, change: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_teacher_with_the_policys_tokens_is_taken(tmp_path: Path, teacher: Path) -> None:
    config = config_of(tmp_path, str(teacher))
    check_teacher(config, Storage(config.storage))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("tokenizer.json", {"normalizer": {"type": "Lowercase"}}, "other tokens than policy.path"),
        ("tokenizer.json", {"added_tokens": []}, "other tokens than policy.path"),
        ("config.json", {"max_position_embeddings": 100}, "takes 100 tokens, and agent.context_tokens is 164"),
    ],
)
def test_a_teacher_that_cannot_score_the_policys_tokens_is_refused(
    tmp_path: Path, teacher: Path, file: str, change: dict[str, Any], message: str
) -> None:
    changed(teacher / file, change)
    config = config_of(tmp_path, str(teacher))
    with pytest.raises(ConfigError, match=message):
        check_teacher(config, Storage(config.storage))


@pytest.mark.parametrize("named", ["nowhere/at/all", "no-such-run", "no-such-run@3"])
def test_a_teacher_that_is_not_there_is_refused(tmp_path: Path, named: str) -> None:
    config = config_of(tmp_path, named)
    with pytest.raises(ConfigError, match=r"update\.loss\.teacher: there is no"):
        check_teacher(config, Storage(config.storage))


def test_a_run_goes_on_with_the_teacher_that_it_began_with(tmp_path: Path, teacher: Path) -> None:
    config = config_of(tmp_path, str(teacher))
    storage = Storage(config.storage)
    run, created = open_run(config, "r", storage)
    assert (created, run.teacher) == (True, teacher_digest(config, storage))
    storage.create_json(run.layout.iteration(0).record, {})  # it made something
    assert open_run(config, "r", storage)[0] == run
    changed(teacher / "config.json", {"rms_norm_eps": 1e-3})
    with pytest.raises(ConfigError, match=r"update\.loss\.teacher holds another model than it began with"):
        open_run(config, "r", storage)
