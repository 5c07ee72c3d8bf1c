"""`nbrl agent` whose cells call agents: what is saved, shown and played again."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from pydantic import ValidationError

from nbrl.agent.trajectory import ChildRecord, Status, Step, Trajectory, to_table
from nbrl.flows.display.trajectory import render
from nbrl.flows.pages.app import page
from nbrl.infra.storage import Storage, StorageSettings
from tests.flows.model_server import act, model_server
from tests.flows.test_agent_cli import run
from tests.flows.test_show import printed
from tests.tasks.storing import stored as store

pytestmark = pytest.mark.process

ASKED = [
    act("said = await agent('Who <b>lives</b> there?', files='a.txt') + await llm('and you?')\nprint(said)"),
    act("print(open('a.txt').read())", "look there"),
    act("submit_final_answer('Tilo')"),
    "only me",
    act("submit_final_answer(said)"),
]
ENDED: dict[str, Any] = {
    "id": "q-0", "group": "q", "sample": 0, "question": "", "ability": "", "status": "answered", "answer": "1", "nodes": []
}  # fmt: skip
OPTIONS = ["--set", "agent.children={}", "--set", "agent.context_tokens=2000", "--set", "agent.action_tokens=400"]


def test_children_are_saved_shown_and_served_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a house")
    with model_server(*ASKED) as server:
        done = run(
            tmp_path, "Who?", "--endpoint", server.url, "--file", "a.txt", *OPTIONS, "--save", "first.ipynb", "--json", "-q"
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    trajectory = Trajectory.model_validate_json(done.stdout)
    assert trajectory.answer == "Tiloonly me"
    assert [(child.kind, child.answer, len(child.steps)) for child in trajectory.children] == [
        ("agent", "Tilo", 2),
        ("llm", "only me", 1),
    ]
    (tmp_path / "first.json").write_text(done.stdout)
    notebook = nbformat.read(tmp_path / "first.ipynb", 4)
    (folded,) = [cell for cell in notebook.cells if cell.id == "step-1-children"]
    assert folded.source.startswith("<details><summary>agent, answered</summary>")
    assert "<b>" not in folded.source
    for name in ("first.ipynb", "first.json"):  # without its model
        again = run(tmp_path, "--replay", name, "--file", "a.txt", *OPTIONS)
        assert (again.returncode, again.stdout) == (0, "Tiloonly me\n"), again.stderr
    folded_line, unfolded = printed(render("e", trajectory, None)), printed(render("e", trajectory, None, unfold=True))
    assert "agent, answered, 2 steps: Who <b>lives</b> there?" in folded_line
    assert "look there" not in folded_line
    assert "look there" in unfolded
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    key = "evaluations/e/evaluations/000000/e0001-abcdef/round-0/trajectories.index.parquet"
    store(storage, key, to_table([trajectory]))
    html = page(storage, "e", [key], trajectory.id)
    assert "<summary>agent called, answered, 2 steps</summary>" in html
    assert "Who &lt;b&gt;lives" in html


@pytest.mark.parametrize("caller", [-1, 1, 2])
def test_a_child_that_was_called_by_itself_or_a_later_step_is_no_trajectory(caller: int) -> None:
    child = ChildRecord(caller=caller, kind="agent", task="t", status=Status.ANSWERED, answer="1", steps=[Step()])
    made = {"steps": [Step().model_dump()], "children": [child.model_dump()]}
    with pytest.raises(ValidationError, match="a child was called by step"):
        Trajectory.model_validate({**ENDED, **made})
