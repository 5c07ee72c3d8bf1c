"""Which steps are branched, and the credit that branches give: by hand, and against the definition on random trees."""

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import Node, Status, Step, ToolCall, Trajectory
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.tasks.advantage.estimate import over_branches, reinforce_pp_baseline, whiten
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.branches import BranchName, branch_of, own_steps_from
from nbrl.tasks.nodes.update import advantage_table
from nbrl.tasks.rollout.branches import branch_rows, candidates_of, chosen
from nbrl.tasks.rollout.settings import BranchSettings
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipes import load

BRANCHED = ["rollout.branch={points: 1}", "advantage.estimator=vine"]


def trajectory(name: str, *steps: Step, status: Status = Status.ANSWERED) -> Trajectory:
    """Its step n was sampled with a log-prob of -n."""
    nodes = [Node(parent=-1, kind="task", step=0, token_ids=[1])]
    nodes += [
        Node(parent=0, kind="sampled", step=number, token_ids=[2, 3], logprobs=[-float(number)] * 2, weights_version="0")
        for number in range(len(steps))
    ]
    return Trajectory(
        id=name, group="q", sample=0, question="", ability="qa", status=status, answer="", nodes=nodes, steps=list(steps)
    )  # fmt: skip


def cell(status: Any = "ok", **more: Any) -> Step:
    return Step(code="1", cell_status=status, **more)


def found(settings: BranchSettings, *trajectories: Trajectory) -> dict[str, list[int]]:
    return {row["id"]: row["steps"] for row in candidates_of(trajectories, settings).to_pylist()}


@given(
    name=st.from_regex(r"[A-Za-z0-9._:-]{1,40}-[0-9]{1,3}", fullmatch=True), step=st.integers(0, 999), number=st.integers(0, 99)
)
def test_the_name_of_a_branch_says_what_it_continues_and_no_other_name_does(name: str, step: int, number: int) -> None:
    assert branch_of(name) is None
    branch = BranchName(name, step, number)
    assert branch_of(branch.id) == branch
    assert (own_steps_from(branch.id), own_steps_from(name)) == (step, 0)


def test_what_comes_before_a_branch_can_be_played_again() -> None:
    lost = ToolCall(name="search", arguments="{", result="", ok=True, complete=False, seconds=0.0)
    uniform = BranchSettings(at="uniform")
    assert found(
        uniform,
        trajectory("a-0", cell(), cell("error"), cell("none"), cell()),
        trajectory("a-1", cell(), cell(tool_calls=[lost]), cell(), cell()),
        trajectory("a-2", cell(), cell("timeout"), cell()),
        trajectory("a-3", cell()),
        trajectory("a-4", cell(), Step(kind="summary"), cell()),
        trajectory("a-5", cell(), cell(), status=Status.FAILED),
        trajectory("a-6"),
    ) == {"a-0": [1, 2, 3], "a-1": [1], "a-2": [1], "a-3": [], "a-4": [2], "a-5": [], "a-6": []}


def test_steps_are_chosen_by_what_the_settings_say() -> None:
    group = [trajectory("q-0", cell(), cell("error"), cell(), cell("error")), trajectory("q-1", cell(), cell(), cell())]
    last = BranchSettings(at="last_error", points=5)
    assert [point[::2] for point in chosen(candidates_of(group, last), last, 0)] == [("q-0", 3)]
    entropy = BranchSettings(at="entropy", points=3)
    points = [(point.trajectory, point.step) for point in chosen(candidates_of(group, entropy), entropy, 0)]
    assert points[0] == ("q-0", 3)
    assert set(points[1:]) == {("q-0", 2), ("q-1", 2)}
    uniform = BranchSettings(at="uniform", points=2)
    draws = {tuple(chosen(candidates_of(group, uniform), uniform, seed)) for seed in range(30)}
    assert len(draws) > 5
    assert chosen(candidates_of(group, uniform), uniform, 4) == chosen(candidates_of(group[::-1], uniform), uniform, 4)


def test_a_branch_has_the_seed_of_its_origin_and_one_of_its_own() -> None:
    settings = BranchSettings(points=1, width=2)
    rows = [{"id": f"q-{number}", "group": "q", "sample": number, "seed": 10 + number} for number in range(2)]
    places = pa.table({"id": ["q-0", "q-1"], PART: ["a", "b"], DIGEST: ["x", "y"], ROW: [3, 4]})
    points = chosen(candidates_of([trajectory("q-1", cell(), cell())], settings), settings, 0)
    made = branch_rows(points, rows, places, settings, 0)
    assert [(row["id"], row["sample"], row["seed"]) for row in made] == [("q-1-b1.0", 2, 11), ("q-1-b1.1", 3, 11)]
    assert [row["trunk"][PART] for row in made] == ["b", "b"]
    assert len({row["trunk"]["seed"] for row in made}) == 2


NAMES = ["q-0", "q-1", "q-0-b1.0", "q-0-b2.0"]
REWARDS = [[0.0, 0.0, 1.0], [0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]


def test_vine_by_hand() -> None:
    # V(start) = (1 + 0) / 2, V(q-0 at 1) = (1 + 0) / 2, V(q-0 at 2) = (1 + 1) / 2
    expected = [[0.0, 0.5, 0.0], [-0.5, -0.5], [-0.5, -0.5], [0.0]]
    made = over_branches(REWARDS, ["q"] * 4, NAMES, deep=False)
    own = [array[own_steps_from(name) :] for array, name in zip(made, NAMES, strict=True)]
    for array, by_hand in zip(own, whiten([np.array(each) for each in expected]), strict=True):
        np.testing.assert_allclose(array, by_hand)


def test_a_deep_value_counts_every_branch_below() -> None:
    # V(q-0 at 2) = (1 + 1) / 2, V(q-0 at 1) = (V(2) + 0) / 2, V(start) = (V(1) + 0) / 2
    expected = [[0.25, 0.5, 0.0], [-0.25, -0.25], [-0.5, -0.5], [0.0]]
    made = over_branches(REWARDS, ["q"] * 4, NAMES, deep=True)
    own = [array[own_steps_from(name) :] for array, name in zip(made, NAMES, strict=True)]
    for array, by_hand in zip(own, whiten([np.array(each) for each in expected]), strict=True):
        np.testing.assert_allclose(array, by_hand)


rewards = st.lists(st.sampled_from([0.0, 0.25, 1.0]), min_size=1, max_size=5)


@given(groups=st.lists(st.lists(rewards, min_size=1, max_size=4), min_size=1, max_size=4), deep=st.booleans())
def test_without_branches_it_is_the_groups_mean_and_the_batchs_spread(groups: list[list[list[float]]], deep: bool) -> None:
    step_rewards = [each for group in groups for each in group]
    names = [f"g{number}" for number, group in enumerate(groups) for _ in group]
    ids = [f"{name}-{number}" for number, name in enumerate(names)]
    for one, other in zip(over_branches(step_rewards, names, ids, deep), reinforce_pp_baseline(step_rewards, names), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


@given(data=st.data(), deep=st.booleans())
def test_credit_is_that_of_the_definition_on_any_tree(data: st.DataObject, deep: bool) -> None:
    roots = data.draw(st.lists(rewards, min_size=1, max_size=3))
    ids, every = [f"q-{number}" for number in range(len(roots))], list(roots)
    below: dict[tuple[int, int], list[int]] = {}
    for root, own in enumerate(roots):
        for step in data.draw(st.sets(st.integers(1, len(own) - 1)) if len(own) > 1 else st.just(set())):
            for number, tail in enumerate(data.draw(st.lists(rewards, min_size=1, max_size=3))):
                ids.append(f"q-{root}-b{step}.{number}")
                below.setdefault((root, step), []).append(len(every))
                every.append([*own[:step], *tail])

    def of_origin(root: int, step: int) -> float:
        later = [each for (origin, each) in below if origin == root and each > step]
        if not deep or not later:
            return sum(every[root][step:])
        return sum(every[root][step : min(later)]) + value(root, min(later))

    def value(root: int, step: int) -> float:
        returns = [of_origin(root, step), *(sum(every[each][step:]) for each in below[root, step])]
        return sum(returns) / len(returns)

    start = sum(of_origin(root, 0) for root in range(len(roots))) / len(roots)
    expected = [np.zeros(len(each)) for each in every]
    for root, own in enumerate(roots):
        states = [0, *sorted(step for origin, step in below if origin == root)]
        values = [start, *(value(root, step) for step in states[1:]), 0.0]
        for (begin, end), (before, after) in zip(pairwise([*states, len(own)]), pairwise(values), strict=True):
            expected[root][begin:end] = sum(own[begin:end]) + after - before
        for step in states[1:]:
            for each in below[root, step]:
                expected[each][step:] = sum(every[each][step:]) - value(root, step)
    kept = whiten([array[own_steps_from(name) :] for array, name in zip(expected, ids, strict=True)])
    made = over_branches(every, ["q"] * len(ids), ids, deep)
    for name, array, wanted in zip(ids, made, kept, strict=True):
        np.testing.assert_allclose(array[own_steps_from(name) :], wanted, atol=1e-9)


def test_the_steps_before_a_branch_have_no_row() -> None:
    rows = [{"trajectory": name, "group": "q", "step_rewards": each} for name, each in zip(NAMES, REWARDS, strict=True)]
    table = advantage_table(rows, load("tiny-cpu", BRANCHED).advantage)
    pairs = list(zip(table["trajectory"].to_pylist(), table["step"].to_pylist(), strict=True))
    assert pairs == [
        ("q-0", 0), ("q-0", 1), ("q-0", 2), ("q-1", 0), ("q-1", 1), ("q-0-b1.0", 1), ("q-0-b1.0", 2), ("q-0-b2.0", 2),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.branch={points: 1}"], "needs advantage.estimator vine or tree"),
        (["advantage.estimator=tree"], "advantage.estimator tree needs branches"),
        ([*BRANCHED, "select.resample_to=2"], "select.resample_to is for whole trajectories"),
        ([*BRANCHED, "advantage.per_ability=true"], "advantage.per_ability is for whole trajectories"),
        ([*BRANCHED, "rollout.group_size=1", "select.drop_rate=0"], "compares a group's trajectories"),
    ],
)
def test_what_cannot_work_with_branches_is_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_config(load("tiny-cpu", [*overrides, "environments.world.train=4", "environments.world.held_out=4"]))
