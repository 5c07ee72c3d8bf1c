"""Errors of the DAG, and helpers for their messages. A bad trajectory is data and never one of these errors."""

import difflib
from collections.abc import Collection

from pydantic import ValidationError


class RunError(Exception):
    """The run cannot continue; the message says what is wrong, where, and how to fix it."""


class ConfigError(RunError):
    """The configuration cannot work. Raised before any work starts."""


class OtherFormatError(ConfigError):
    """Another version of nbrl wrote what is to be read."""


class RolloutError(RunError):
    """The infrastructure of the rollouts failed beyond the retry budget."""


class RewardError(RunError):
    """Answers cannot be judged; the message says why."""


class PrepareError(RunError):
    """The preparation of data cannot go on; what it has done is kept."""


class NoQuestionLeftError(PrepareError):
    """A stage of a preparation dropped every question."""


class NothingLearnedError(RunError):
    """The run made no update, because no iteration had a group with signal."""


class TakenOverError(RunError):
    """Another process has taken over the run; this one must not write to it any more."""


class StoppedError(RunError):
    """`nbrl stop` asked this process to end; the run can go on."""


class BrokenInvariantError(RunError):
    """An invariant does not hold; continuing would train on wrong data."""


class NoGainError(RunError):
    """A checkpoint is not so much better than the champion that it may take its place."""


class UpdateError(RunError):
    """An order cannot be carried out; the message says why in one line."""


class TeacherError(RunError):
    """A served teacher does not answer, or not with log-probs."""


class LearnerEndedError(UpdateError):
    """The learner has ended, whatever its order was; another one can carry it out."""


class LearnerUnplacedError(LearnerEndedError):
    """No machines have room for the ranks of a learner that was started again."""


def did_you_mean(name: str, known: Collection[str], otherwise: str = "") -> str:
    """Return a question with the known name most like `name`; if none is similar, `otherwise` or the list of all names."""
    near = difflib.get_close_matches(name, known, 1, cutoff=0.57)
    return f"did you mean {near[0]!r}?" if near else otherwise or f"there are: {', '.join(sorted(known)) or 'none yet'}."


def first_fault(error: ValidationError) -> tuple[list[str], str]:
    """Return the keys of the first invalid value, and what is wrong with it."""
    fault = error.errors(include_url=False)[0]
    return [str(key) for key in fault["loc"]], fault["msg"].removeprefix("Value error, ")


def fault_in_words(error: ValidationError) -> str:
    """Return the first fault in one phrase."""
    keys, words = first_fault(error)
    return f"{'.'.join(keys)}: {words}" if keys else words
