"""The vocabulary of an environment of one's own: subclass `Tasks` for questions, `World` for tasks whose state changes, and name
the class in a recipe as `{kind: own, place: "module:Class"}`.

This file imports nothing of nbrl: scores are computed in a sandbox, where there is nothing else of it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])
TOOL = "nbrl_tool"
"""The attribute that `tool` sets."""


@dataclass(frozen=True)
class Question:
    """One task. `reference` is JSON for `Tasks.score`, and never reaches the agent; nor do `answers`.

    With another `rule` (qa, number, choice, math, ...) the answer is compared with `answers` by it, and `Tasks.score` is not
    called. `files` are in the working folder from the beginning: each a path, or a name and the content. `collect` names files
    of the working folder that `Tasks.score` gets. An empty `id` is made of the split and
    the question's number. `max_steps` and `deadline_s` (seconds) replace those of the recipe's `agent` for this question.
    """

    text: str
    reference: Any = None
    answers: Sequence[str] = ()
    rule: str = "own"
    ability: str = "task"
    id: str = ""
    files: Sequence[str | tuple[str, bytes]] = ()
    collect: Sequence[str] = ()
    max_steps: int | None = None
    deadline_s: float | None = None


@dataclass(frozen=True)
class Step:
    """One step of a trajectory. `cell_status` is ok, error, timeout, dead, or none if no cell ran.

    `outputs` are the texts that the cell showed, with their kind (stream, result, error, display).
    """

    kind: str
    think: str
    code: str
    observation: str
    cell_status: str
    malformed: str
    outputs: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class ScoredChild:
    """A model (kind `llm`) or an agent (kind `agent`) that a cell called with this task. `answer` is None where it gave none."""

    kind: str
    task: str
    status: str
    answer: str | None
    steps: Sequence[Step] = ()


@dataclass(frozen=True)
class Trajectory:
    """A finished trajectory. `status` says how it ended; `answer` is None if none was submitted; `files` are those collected;
    `outcome` is that of its session in a `World`, and None elsewhere; `children` are those that its cells called.
    """

    question: str
    ability: str
    status: str
    answer: str | None
    steps: Sequence[Step] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    outcome: Any = None
    children: Sequence[ScoredChild] = ()


@dataclass(frozen=True)
class Score:
    """The score of a trajectory. Groups are selected by `success`, which is also reported. `value`, from 0 to 1 (what is beyond
    is cut), is what the last step is paid for the task; when None, 1 for a success and else 0. With `steps`, one number for each
    step, each step is paid its own instead. `facets` are reported as metrics and pay nothing; in their names `@` becomes `_at_`,
    and what else no metric's name can have becomes `_`.
    """

    success: bool
    value: float | None = None
    steps: Sequence[float] = ()
    facets: Mapping[str, float] = field(default_factory=dict)


class Tasks:
    """An environment of one's own. It is made with the recipe's `settings` as keyword arguments.

    `questions` and `corpus` run on the host whenever settings are checked; a run keeps what they gave when it began. `score` runs
    after the end of a trajectory, for each in a process of its own without network, files or time to spare: it is a function of
    its arguments alone.
    """

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        """Return the questions of a split, the same at every call."""
        raise NotImplementedError(f"{type(self).__name__} has no method questions; write it")

    def corpus(self) -> Iterable[str]:
        """Return the passages for the tool `search`."""
        return ()

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Return what a trajectory is worth. `reference` is that of its question. If this raises, the trajectory is wrong; where
        no answer to the question can be scored at all, its group is left out.
        """
        raise NotImplementedError

    def score_child(self, child: ScoredChild, trajectory: Trajectory, reference: Any) -> float:
        """Return what a child of a trajectory is worth, from 0 to 1, for a run whose children have their own credit."""
        raise NotImplementedError

    def demonstrate(self, question: Question, rng: Random, good: bool) -> Sequence[tuple[str, str]]:
        """Return the steps of a demonstration for a warm start of kind `own`, each a thought and a cell. They are right where
        `good`; else they show only how to act, drawn by `rng`.
        """
        raise NotImplementedError

    def demonstrate_child(self, task: str, question: Question, rng: Random, good: bool) -> Sequence[tuple[str, str]] | str:
        """Return how a child does the task that a demonstration gives it: what a model says (`llm`), or the steps of an agent."""
        raise NotImplementedError


class WorldRefuses(Exception):  # noqa: N818 - it is no error of the world
    """Raised by a tool of a `Session` for a call that cannot be carried out. The agent reads the message and goes on."""


def tool(method: Method) -> Method:
    """Mark a method of a `Session` as a tool, which cells call as a function of its name.

    Its docstring and type annotations are what the agent reads; arguments are checked by them before the method runs.
    """
    setattr(method, TOOL, True)
    return method


class Session:
    """The state of one trajectory in a `World`. Its methods may be `async`; those that are not run in one thread of its own.

    One method runs at a time. It runs on the host: arguments of tools are written by a model and may be anything that fits their
    types. An exception of a tool other than `WorldRefuses` is a fault of the infrastructure, not of the trajectory, which is then
    tried again and never scored.
    """

    done: bool = False
    """Set it to True when the task has ended; the trajectory then ends after the cell that runs."""

    def observe(self) -> str:
        """Return what is added to the question; empty for nothing."""
        return ""

    def outcome(self) -> Any:
        """Return JSON about how it ended, for `score`; called once, after the last call."""
        return None

    def close(self) -> None:
        """Release what the session holds."""


class World(Tasks):
    """An environment with a state of its own for each trajectory. `score` finds what `Session.outcome` returned in
    `trajectory.outcome`. `corpus` and `questions` are as in `Tasks`; every question is scored by `score`.
    """

    replayable: bool = True
    """Whether a session with the same question, seed and calls gives the same answers and outcome, which `nbrl audit` checks."""

    def start(self, question: Question, seed: int) -> Session:
        """Return a new session. All trajectories of a question get the same `question`, with its reference, and each a `seed`
        of its own. It may be `async`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method start; write it")
