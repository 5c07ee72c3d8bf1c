"""The audit of a stream's batches: every group in flight once, none too old, none from weights that were not there."""

from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.tasks.audit.stream import check_admitted, check_streamed
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.streamed import stream_prompts
from nbrl.tasks.rollout.chunks import index_of, with_tokens
from nbrl.tasks.rollout.stream import GroupInFlight, stream_ages
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.scope import Artifact

CONFIG = load(
    "tiny-cpu",
    ["pipeline.stream=true", "pipeline.lag=2", "rollout.prompts=2", "rollout.group_size=1", "pipeline.admit=quota"],
)
QUESTIONS = table_of(
    [
        {"id": f"q{number}", "question": f"{number}?", "answers": ["1"], "ability": "a", "environment": "world"}
        for number in range(9)
    ]
)
FLYING = [GroupInFlight(2, 0), GroupInFlight(3, 0), GroupInFlight(4, 0)]  # the first batch had 0 and 1


def prompts(*groups: GroupInFlight) -> pa.Table:
    return stream_prompts(CONFIG, QUESTIONS, 0, groups)


def said(table: pa.Table) -> list[str]:
    return list(check_admitted(CONFIG, QUESTIONS, 0, FLYING, table, 1))


def test_groups_in_flight_with_those_that_were_due_are_no_contradiction() -> None:
    assert said(prompts(FLYING[0], FLYING[2])) == []


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (prompts(FLYING[1], FLYING[2]), ["the group at position 2 had to be admitted, and was not"]),
        (prompts(FLYING[0], FLYING[0]), ["a group was admitted that was not in flight, or twice"]),
        (prompts(FLYING[0], GroupInFlight(7, 0)), ["a group was admitted that was not in flight, or twice"]),
        (prompts(FLYING[0], GroupInFlight(4, 1)), ["the prompts are not those of their positions in the run's order"]),
    ],
    ids=["late", "twice", "unknown", "begun by others"],
)
def test_a_batch_of_other_groups_is_a_contradiction(table: pa.Table, words: list[str]) -> None:
    assert said(table) == words


def played(group: str, *versions: str) -> Trajectory:
    nodes = [Node(parent=-1, kind="task", step=0, token_ids=[1])]
    nodes += [
        Node(parent=number, kind="sampled", step=number, token_ids=[2, 3], logprobs=[-0.1, -0.2], weights_version=version)
        for number, version in enumerate(versions)
    ]
    steps = [Step(think="", code="", observation="") for _ in versions]
    made: dict[str, Any] = {"question": "", "ability": "a", "status": Status.ANSWERED, "answer": ""}
    return Trajectory(id=f"{group}-0", group=group, sample=0, nodes=nodes, steps=steps, environment="world", **made)


def streamed(*versions: tuple[str, ...], updates: int = 2, lie: float = 0.0, config: RunConfig = CONFIG) -> list[str]:
    """The contradictions of two groups begun with weights 0 and 1, which these versions sampled."""
    table = prompts(GroupInFlight(2, 0), GroupInFlight(3, 1))
    made = [played(group, *each) for group, each in zip(table["group"].to_pylist(), versions, strict=True)]
    index = with_tokens(index_of(made, "", ""), made)
    ages = {name: value + lie for name, value in stream_ages(index, updates).items()}
    artifact = Artifact(path="runs/r/x.parquet", digest="", metrics=of(ages, "last"))
    return list(check_streamed(config, table, to_table(made), artifact, updates))


def test_actions_of_several_weights_within_the_lag_are_no_contradiction() -> None:
    assert streamed(("0", "1", "2"), ("1",)) == []


def test_more_updates_in_the_middle_than_are_allowed_are_a_contradiction() -> None:
    alone = CONFIG.model_copy(update={"pipeline": CONFIG.pipeline.model_copy(update={"mixed": 0})})
    assert streamed(("0",), ("1",), config=alone) == []
    assert "1 updates came in the middle of" in streamed(("0", "1"), ("1",), config=alone)[0]


def test_ages_and_versions_that_cannot_be_are_contradictions() -> None:
    assert "sampled from weights '0', where weights 1 to 2 were published" in streamed(("0",), ("0",))[0]
    assert "sampled from weights '3', where weights 0 to 2 were published" in streamed(("3",), ("1",))[0]
    assert streamed(("0",), ("1",), updates=3) == ["1 groups are young enough to be learned from, and a batch has 2"]
    assert streamed(("0",), ("1",), lie=0.5) == ["the ages of the tokens are not those of the trajectories"]
