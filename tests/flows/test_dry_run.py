"""`nbrl train --dry-run`: the plan, what looks wrong and what could not be checked; nothing is made."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from nbrl.tasks.environments.questions import table_of
from tests.flows.typed import nbrl

pytestmark = pytest.mark.process


def test_the_plan_goes_to_stdout_and_what_to_know_to_stderr(tmp_path: Path) -> None:
    rows = [{"id": "a", "question": "q?", "answers": ["so #### 42"], "ability": "qa", "source": "s"}]
    pq.write_table(table_of(rows), tmp_path / "q.parquet")
    recipe = tmp_path / "mine.yaml"
    data = (
        "environments: {e: {kind: files, train: q.parquet, held_out: q.parquet}}\nrollout: {prompts: 1, tools: {default: []}}\n"
    )
    recipe.write_text(f"base: tiny-cpu\n{data}storage: {{root: made}}\ntracking: {{uri: 'sqlite:////tmp/x.db'}}\n")
    done = nbrl("train", str(recipe), "--dry-run", "--set", f"home={tmp_path}/home")
    assert done.returncode == 0, done.stderr
    settings, _, plan = done.stdout.partition("# every other setting is at its default: --all shows them\n")
    assert plan.startswith("# mine: 7 iterations")
    assert yaml.safe_load(settings)["rollout"]["prompts"] == 1
    assert "memory_mb" not in settings
    assert "1 of 1 held-out questions are training questions" in done.stderr
    assert "carry a solution" in done.stderr
    assert "not checked: tracking.uri sqlite:////tmp/x.db" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "q.parquet"]


def test_every_setting_is_shown_where_it_is_asked_for() -> None:
    done = nbrl("train", "tiny-cpu", "--dry-run", "--all")
    assert "memory_mb: 512\n" in done.stdout
    refused = nbrl("train", "tiny-cpu", "--all")
    assert (refused.returncode, "--all is for a dry run" in refused.stderr) == (1, True)


def test_a_dead_server_is_an_error_of_a_dry_run_too() -> None:
    done = nbrl("train", "tiny-cpu", "--dry-run", "--set", "tracking.uri=http://127.0.0.1:9")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no MLflow server answers" in done.stderr
