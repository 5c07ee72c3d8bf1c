"""A trajectory and its Arrow schema.

A trajectory is a tree of message nodes, each a run of token ids with a parent. The trunk holds the system prompt, the task and,
step by step, the action as history and its observation. At every step a tail (notepad, budget, generation prompt) hangs off the
trunk, and off the tail the action as it was sampled. A trim or a change of the view starts a branch off the last node that both
views share; in it a summary may replace cells, and cells may come again. Node ids are positions in `nodes`; a parent comes before
its children. The ids of a sampled node are exactly those the engine returned.
"""

from collections.abc import Iterable
from enum import StrEnum
from itertools import accumulate
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

NodeKind = Literal["system", "task", "action", "observation", "summary", "tail", "sampled", "untrained"]
SAMPLED = ("sampled", "untrained")
"""Kinds of nodes that a policy sampled; those of children may not be trained."""
ROOT = -1
DEEPEST = 4  # levels of children, as agent.children.depth may be


class Status(StrEnum):
    """The end of a trajectory. Every status except FAILED results from the policy's behaviour and is scored.

    DONE: the session of its environment ended the task.
    """

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    DONE = "done"
    STEP_LIMIT = "step_limit"
    TOKEN_LIMIT = "token_limit"
    TIMEOUT = "timeout"
    FAILED = "failed"


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")


class Node(_Record):
    """A run of token ids. `logprobs` has one entry per id on sampled nodes and is empty elsewhere.

    Saved as JSON, a node whose ids are unknown has neither.
    """

    parent: int
    kind: NodeKind
    step: int
    token_ids: list[int] = Field(default_factory=list)
    logprobs: list[float] = Field(default_factory=list)
    weights_version: str = ""


class Output(_Record):
    """One output of a cell, as text; `image` is the PNG file that was shown with it, or empty."""

    kind: Literal["stream", "result", "error", "display"]
    text: str
    image: bytes = b""

    @property
    def size(self) -> tuple[int, int]:
        """Return width and height of the image in pixels, from its header."""
        return int.from_bytes(self.image[16:20], "big"), int.from_bytes(self.image[20:24], "big")


class ToolCall(_Record):
    """One call of a host tool; `arguments` and `result` are JSON, cut short when not `complete`.

    The result of a call that is not `ok` is the error's type and message.
    """

    name: str
    arguments: str
    result: str
    ok: bool
    complete: bool = True
    seconds: float


class Step(_Record):
    """One sampled action: a think-code-observe or, of kind `summary`, a summary of what leaves the context.

    Of kind `reply` it is an answer to a request of a program that acts as the agent: `observation` is what the request said last,
    `code` the answer.

    `malformed` holds the reason when a cell's action was outside the grammar, and then no cell ran, or when a summary is empty. A
    summary's text, as shown in the context, is its `observation`. Step i's sampled node is the one with `step` i. `tool_calls`
    are the first calls of the cell, `unrecorded_calls` counts those after them.
    """

    kind: Literal["cell", "summary", "reply"] = "cell"
    think: str = ""
    code: str = ""
    malformed: str = ""
    cell_status: Literal["ok", "error", "timeout", "dead", "none"] = "none"
    outputs: list[Output] = Field(default_factory=list)
    observation: str = ""
    notepad: str = "{}"
    tool_calls: list[ToolCall] = Field(default_factory=list)
    unrecorded_calls: int = 0
    policy_seconds: float = 0.0
    kernel_seconds: float = 0.0


class ChildRecord(_Record):
    """A model (`llm`) or an agent that the cell of step `caller` called, with what it did: a root of its own in the tree.

    Its steps are numbered after those of the trajectory and of the children before it; `caller` and the steps of nodes are such
    numbers. `answer` is None where there is none, as when it ran out of steps.
    """

    caller: int
    kind: Literal["llm", "agent"]
    task: str
    status: Status
    answer: str | None
    steps: list[Step] = Field(default_factory=list)


class ProducedFile(_Record):
    """A file of the working folder as it was at the end."""

    path: str
    data: bytes


class Trajectory(_Record):
    """Everything about one rollout except its score. `group` is the prompt's id, `sample` the rollout's number in its group.

    `outcome` is JSON from the session of its environment, empty where there is none; like all of a score's grounds it never
    reaches the agent. `routes` has, of each node, the experts that the engine chose for its tokens; it is empty without them.
    """

    id: str
    group: str
    sample: int
    question: str
    ability: str
    status: Status
    answer: str | None
    failure: str = ""
    nodes: list[Node]
    steps: list[Step]
    started_at: float = 0.0
    seconds: float = 0.0
    environment: str = ""
    files: list[ProducedFile] = Field(default_factory=list)
    outcome: str = ""
    children: list[ChildRecord] = Field(default_factory=list)
    routes: list[bytes] = Field(default_factory=list)

    @field_validator("children", "routes", mode="before")
    @classmethod
    def _none_before_there_were_any(cls, values: Any) -> Any:
        return values or []

    @model_validator(mode="after")
    def _called_before_they_began(self) -> "Trajectory":
        depths = [0] * len(self.steps)  # of each step
        for child in self.children:
            if not 0 <= child.caller < len(depths):
                raise ValueError(f"a child was called by step {child.caller}, and {len(depths)} steps come before its own")
            depths += [depths[child.caller] + 1] * len(child.steps)
            if depths[child.caller] >= DEEPEST:
                raise ValueError(f"a child is more than {DEEPEST} levels below its trajectory")
        return self

    @property
    def all_steps(self) -> list[Step]:
        """Return the steps in the order of their numbers: those of the trajectory, then those of its children."""
        return [*self.steps, *(step for child in self.children for step in child.steps)]

    def called_by(self, step: int) -> list[tuple[int, int]]:
        """Return the children that the cell of step `step` called: the place of each, and the number of its first step."""
        firsts = accumulate((len(child.steps) for child in self.children), initial=len(self.steps))
        return [
            (place, first)
            for place, (child, first) in enumerate(zip(self.children, firsts, strict=False))
            if child.caller == step
        ]

    def sampled(self) -> list[Node]:
        """Return the sampled action of every step, in the order in which the tree has them. One that a branch leaves halfway is
        there in parts, which are joined.
        """
        whole: dict[int, Node] = {}
        for node in self.nodes:
            if node.kind in SAMPLED and (first := whole.get(node.step)) is not None:
                joined = {"token_ids": [*first.token_ids, *node.token_ids], "logprobs": [*first.logprobs, *node.logprobs]}
                whole[node.step] = first.model_copy(update=joined)
            elif node.kind in SAMPLED:
                whole[node.step] = node
        return list(whole.values())

    def path(self, index: int) -> list[int]:
        """Return the token ids from the root to the end of node `index`: what the engine saw, and the node itself."""
        ids: list[int] = []
        while index != ROOT:
            ids[:0] = self.nodes[index].token_ids
            index = self.nodes[index].parent
        return ids


_NODE = pa.struct(
    [
        ("parent", pa.int32()),
        ("kind", pa.string()),
        ("step", pa.int32()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("weights_version", pa.string()),
    ]
)
_CALL = pa.struct(
    [
        ("name", pa.string()),
        ("arguments", pa.string()),
        ("result", pa.string()),
        ("ok", pa.bool_()),
        ("complete", pa.bool_()),
        ("seconds", pa.float64()),
    ]
)
_STEP = pa.struct(
    [
        ("kind", pa.string()),
        ("think", pa.string()),
        ("code", pa.string()),
        ("malformed", pa.string()),
        ("cell_status", pa.string()),
        ("outputs", pa.list_(pa.struct([("kind", pa.string()), ("text", pa.string()), ("image", pa.binary())]))),
        ("observation", pa.string()),
        ("notepad", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("unrecorded_calls", pa.int32()),
        ("policy_seconds", pa.float64()),
        ("kernel_seconds", pa.float64()),
    ]
)
_CHILD = pa.struct(
    [
        ("caller", pa.int32()),
        ("kind", pa.string()),
        ("task", pa.string()),
        ("status", pa.string()),
        ("answer", pa.string()),
        ("steps", pa.list_(_STEP)),
    ]
)
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("group", pa.string()),
        ("sample", pa.int32()),
        ("question", pa.string()),
        ("ability", pa.string()),
        ("status", pa.string()),
        ("answer", pa.string()),
        ("failure", pa.string()),
        ("nodes", pa.list_(_NODE)),
        ("steps", pa.list_(_STEP)),
        ("started_at", pa.float64()),
        ("seconds", pa.float64()),
        ("environment", pa.string()),
        ("files", pa.list_(pa.struct([("path", pa.string()), ("data", pa.binary())]))),
        ("outcome", pa.string()),
        ("children", pa.list_(_CHILD)),
        ("routes", pa.list_(pa.large_binary())),
    ]
)
LATER = ("children", "routes")
"""Columns that tables of earlier versions lack."""


def with_later_columns(table: pa.Table) -> pa.Table:
    """Return a table of an earlier version with the columns that it lacks, without values."""
    for name in LATER:
        if name not in table.column_names:
            table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    return table


def to_table(trajectories: Iterable[Trajectory]) -> pa.Table:
    return pa.Table.from_pylist([t.model_dump() for t in trajectories], schema=SCHEMA)


def from_table(table: pa.Table) -> list[Trajectory]:
    """Read trajectories. Raises pydantic.ValidationError if the table does not have this schema."""
    rows: list[dict[str, Any]] = table.to_pylist()
    return [Trajectory.model_validate(row) for row in rows]
