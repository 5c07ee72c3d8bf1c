"""The vocabulary of an environment of one's own: subclass `Tasks`, and name it in a recipe as `{kind: own, place:
"module:Class"}`.

This file imports nothing of nbrl: scores are computed in a sandbox, where there is nothing else of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Question:
    """One task. `reference` is JSON for `Tasks.score`, and never reaches the agent; nor do `answers`.

    With another `rule` (qa, number, choice, math, ...) the answer is compared with `answers` by it, and `Tasks.score` is not
    called. `files` are paths of files that are in the working folder from the beginning, `collect` names files of the
    working folder that `Tasks.score` gets. An empty `id` is made of the split and
    the question's number.
    """

    text: str
    reference: Any = None
    answers: Sequence[str] = ()
    rule: str = "own"
    ability: str = "task"
    id: str = ""
    files: Sequence[str] = ()
    collect: Sequence[str] = ()


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
class Trajectory:
    """A finished trajectory. `status` says how it ended; `answer` is None if none was submitted; `files` are those collected."""

    question: str
    ability: str
    status: str
    answer: str | None
    steps: Sequence[Step] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


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
        raise NotImplementedError

    def corpus(self) -> Iterable[str]:
        """Return the passages for the tool `search`."""
        return ()

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Return what a trajectory is worth. `reference` is that of its question. If this raises, the trajectory is wrong; where
        no answer to the question can be scored at all, its group is left out.
        """
        raise NotImplementedError
