"""What the actions of children learn from: the advantage of the step that called, their own score, or nothing."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nbrl.agent.settings import ChildSettings, Credit
from nbrl.agent.trajectory import ChildRecord, Node, Status, Step, Trajectory, to_table
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.environments.worlds.letters import TASK, Letters
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.batch.batch import batch_of
from nbrl.tasks.nodes.update import advantage_table
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load

# Two trajectories of a group: the first has two steps, of which the second called a child that called one itself.
ROWS = [
    {
        "trajectory": "x",
        "group": "a",
        "step_rewards": [0.0, 1.0],
        "children": [{"caller": 1, "step_rewards": [0.0, 0.5]}, {"caller": 3, "step_rewards": [0.25]}],
    },
    {"trajectory": "y", "group": "a", "step_rewards": [0.0], "children": [{"caller": 0, "step_rewards": [0.1]}]},
]


def table(credit: Credit, **settings: Any) -> dict[tuple[str, int], float]:
    rows = advantage_table(ROWS, AdvantageSettings.model_validate(settings), credit).to_pylist()
    return {(row["trajectory"], row["step"]): row["advantage"] for row in rows}


def test_children_have_the_advantage_of_the_step_that_called_them_or_their_parent() -> None:
    made = table("parent", estimator="reinforce_pp", gamma=0.5)
    returns = np.array([0.5, 1.0, 0.0])
    first, second, third = (returns - returns.mean()) / (returns.std(ddof=1) + 1e-8)
    assert made == pytest.approx(
        {
            ("x", 0): first,
            ("x", 1): second,
            ("x", 2): second,
            ("x", 3): second,
            ("x", 4): second,
            ("y", 0): third,
            ("y", 1): third,
        }
    )


def test_with_their_own_credit_children_of_a_group_are_compared_with_one_another() -> None:
    made = table("own", estimator="dr_grpo")
    mean = (0.5 + 0.25 + 0.1) / 3
    assert made == pytest.approx(
        {
            ("x", 0): 0.5,
            ("x", 1): 0.5,
            ("x", 2): 0.5 - mean,
            ("x", 3): 0.5 - mean,
            ("x", 4): 0.25 - mean,
            ("y", 0): -0.5,
            ("y", 1): 0.1 - mean,
        }
    )


def test_children_that_are_not_trained_have_no_advantage() -> None:
    assert table("none", estimator="dr_grpo") == {("x", 0): 0.5, ("x", 1): 0.5, ("y", 0): -0.5}


def node(parent: int, kind: Any, step: int, *ids: int) -> Node:
    sampled = kind in ("sampled", "untrained")
    return Node(parent=parent, kind=kind, step=step, token_ids=list(ids), logprobs=[-0.5] * len(ids) if sampled else [])


def trajectory(kind: Any = "sampled") -> Trajectory:
    """A trajectory of one step, with a child whose system prompt is the same."""
    child = ChildRecord(caller=0, kind="agent", task="t", status=Status.ANSWERED, answer="1", steps=[Step()])
    nodes = [
        node(-1, "system", 0, 1, 2), node(0, "task", 0, 3), node(1, "sampled", 0, 4, 5),
        node(-1, "system", 1, 1, 2), node(3, "task", 1, 6), node(4, kind, 1, 7),
    ]  # fmt: skip
    return Trajectory(
        id="x", group="a", sample=0, question="q", ability="", status=Status.ANSWERED, answer="1", nodes=nodes, steps=[Step()],
        children=[child],
    )  # fmt: skip


def advantages(*values: float) -> pa.Table:
    rows = [{"trajectory": "x", "group": "a", "step_rewards": [values[0]], "children": []}]
    made = advantage_table(rows, AdvantageSettings(estimator="dr_grpo"))
    steps = [{"trajectory": "x", "step": step, "advantage": value} for step, value in enumerate(values)]
    return pa.Table.from_pylist(steps, schema=made.schema)


def test_the_tree_of_a_batch_has_both_roots_and_what_they_share_once() -> None:
    forest = batch_of(to_table([trajectory()]), advantages(1.0, -1.0)).forest
    packed = forest.pack()
    assert (forest.tokens, forest.targets) == (7, 3)
    assert packed.target_N.tolist() == [4, 5, 7]
    assert packed.advantage_N.tolist() == [1.0, 1.0, -1.0]
    by_hand = {4: 3, 5: 4, 7: 6}  # each target and the token before it on its path
    assert {packed.input_ids_T[place] for place in packed.predictor_N} == set(by_hand.values())


def test_an_untrained_child_is_no_target() -> None:
    forest = batch_of(to_table([trajectory("untrained")]), advantages(1.0)).forest
    assert (forest.tokens, forest.targets) == (5, 2)


@pytest.mark.sandbox
def test_a_class_scores_children_in_its_own_process() -> None:
    world = Letters(train=1, letters=6)
    (question,) = world.questions("train")
    letters = [*question.reference["complaints"], *question.reference["others"]]
    answers = ["yes", "no", None, "yes"]
    kinds = [*question.reference["complaints"][:2], letters[-1], letters[-1]]
    right = [float(said == ("yes" if letter in question.reference["complaints"] else "no"))
             for said, letter in zip(answers, kinds, strict=True)]  # fmt: skip
    children = [
        ChildRecord(caller=0, kind="llm", task=TASK + letter, status=Status.ANSWERED, answer=said, steps=[Step(kind="reply")])
        for said, letter in zip(answers, kinds, strict=True)
    ]
    made = trajectory().model_copy(update={"children": children, "answer": str(len(question.reference["complaints"]))})
    reference = {
        "place": "nbrl.tasks.environments.worlds.letters:Letters", "settings": {"train": 1, "letters": 6},
        "reference": question.reference,
    }  # fmt: skip
    table = to_table([made])
    for name, value in {
        "answers": [], "rule": "own", "reference": json.dumps(reference), "grade": "", "ungraded": "", "environment": "letters",
    }.items():  # fmt: skip
        if name not in table.column_names:
            table = table.append_column(name, pa.array([value], pa.list_(pa.string()) if name == "answers" else pa.string()))
    settings = RewardSettings(format=0.0, execution=0.0)
    (scored,) = score_table(table, settings, "own").to_pylist()
    assert (scored["success"], scored["unscored"]) == (1.0, "")
    full, none = settings.qa * settings.qa_weights.scaled(1.0), settings.qa * settings.qa_weights.scaled(0.0)
    assert [child["step_rewards"] for child in scored["children"]] == [[full if each else none] for each in right]
    (unpaid,) = score_table(table, settings, "parent").to_pylist()
    assert [child["step_rewards"] for child in unpaid["children"]] == [[0.0]] * 4
    assert "children" not in score_table(table, settings).column_names


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["agent.children.credit=own"], "environments.world has no class with a method score_child"),
        (["agent.children={}", "sandbox.max_live=72"], "raise the latter to 128 or more"),
        (["agent.children={}", "advantage.estimator=gae", "update.critic={}"], "agent.children.credit parent needs advantages"),
        (["agent.children={}", "rollout.branch={}", "advantage.estimator=vine"], "leave out agent.children"),
    ],
)
def test_settings_of_children_that_cannot_work_are_refused(overrides: list[str], said: str) -> None:
    config = load("tiny-cpu", ["sandbox.max_live=200", *overrides])
    with pytest.raises(ConfigError, match=said):
        check_config(config)


def test_children_are_for_notebooks() -> None:
    with pytest.raises(ConfigError, match="children has no effect"):
        load("tiny-cpu", ["agent.kind=program", "agent.command=[python]", "agent.trim=hard", "agent.children={}"])
    assert ChildSettings().credit == "parent"
