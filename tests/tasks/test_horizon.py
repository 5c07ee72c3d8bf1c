"""A curriculum of steps, in a real kernel."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from nbrl.agent.trajectory import Status, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import WorldEnvironment
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.rollout.settings import HorizonSettings
from nbrl.tasks.runs.recipes import load
from tests.tasks.scripted import play


@pytest.mark.more
@pytest.mark.sandbox
def test_an_episode_has_the_steps_of_its_phase_and_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write({"world": WorldEnvironment(kind="world", train=1, held_out=1)}, storage, layout)
    prompts = stored.read(storage, layout, "train")
    rows = task_rows(prompts.append_column("group", prompts["id"]), 1, 0)
    config, environments = load("tiny-cpu"), {"world": EnvironmentPlan()}
    for limit, status in ((2, Status.STEP_LIMIT), (None, Status.ANSWERED)):
        cells = [["1", "2", "submit_final_answer('x')"]]
        table = play(monkeypatch, config, storage, layout, environments, rows, cells, max_steps=limit)
        (made,) = from_table(table)
        assert (made.status, len(made.steps)) == (status, limit or 3)


@pytest.mark.parametrize("steps", [[4], [4, 4], [4, 2], [0, 4]])
def test_phases_that_do_not_rise_are_refused(steps: list[int]) -> None:
    with pytest.raises(ValidationError):
        HorizonSettings.model_validate({"steps": steps, "every": 2})
