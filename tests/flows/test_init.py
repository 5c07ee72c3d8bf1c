"""`nbrl init`: each start is a recipe that a dry run accepts, and nothing is overwritten. test_measure.py trains one of them."""

import csv
import io
import shlex
import sys
from pathlib import Path
from typing import get_args

import pytest

from nbrl.flows.cli.init import RECIPE, STARTS, Start, init
from nbrl.tasks.errors import ConfigError
from tests.agent.tool_server import Said, serving
from tests.flows.typed import REPOSITORY, nbrl

pytestmark = pytest.mark.process

TINY = REPOSITORY / "infra/policies/tiny"
INSTEAD = {
    "smollm2": [f"policy.path={TINY}", "agent.context_tokens=164", "agent.action_tokens=48"],  # it is fetched and taught before
    "gpu": ["engine.extra_args={}"],  # for which SGLang would be started
}


@pytest.mark.parametrize("start", get_args(Start))
def test_the_dry_run_that_comes_next_accepts_what_a_start_writes(start: str, tmp_path: Path) -> None:
    done = nbrl("init", start, "a b", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    (next_,) = [line.removeprefix("next  nbrl ") for line in done.stdout.splitlines() if line.endswith("--dry-run")]
    assert f"nbrl {next_}" in (tmp_path / "a b" / RECIPE).read_text()
    flags = [part for override in INSTEAD.get(start, []) for part in ("--set", override)]
    with serving(Said({"data": [{"id": "m"}]})) as server:
        line = shlex.split(next_.replace("http://127.0.0.1:8000", server.url))
        done = nbrl(*line, *flags, folder=tmp_path, HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "# my: " in done.stdout or "# evaluation my-m-" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a b"]


def test_a_start_is_short_and_has_few_questions() -> None:
    recipes = [path.read_text() for path in STARTS.glob("*.yaml")]
    assert len(recipes) == len(get_args(Start))
    assert all(len(recipe.splitlines()) <= 25 for recipe in recipes)
    for name in ("train", "held_out"):
        with (STARTS / "files" / f"{name}.csv").open() as file:
            assert 4 <= len(list(csv.DictReader(file))) <= 8


def test_what_is_missing_is_written_and_nothing_is_overwritten(tmp_path: Path) -> None:
    init("questions", tmp_path)
    (tmp_path / "train.csv").unlink()
    init("questions", tmp_path)
    assert (tmp_path / "train.csv").exists()
    (tmp_path / "train.csv").write_text("mine")
    (tmp_path / "held_out.csv").unlink()
    with pytest.raises(ConfigError, match=r"train\.csv exists; name another folder"):
        init("questions", tmp_path)
    assert (tmp_path / "train.csv").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.yaml", "passages.csv", "train.csv"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_start_is_asked_for_in_a_terminal_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = nbrl("init", folder=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "nbrl: no start is named; give one: nbrl init questions|class|endpoint|smollm2|gpu\n"
    monkeypatch.setattr(sys, "stdin", Terminal("clas\nclass\n"))
    init(None, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my.yaml", "my_tasks.py"]
