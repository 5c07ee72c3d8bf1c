"""What is known of a published data set: where it is, what its rows are, and how a row becomes a question."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nbrl.tasks.reward.rules.rule import Rule

Row = Mapping[str, Any]


class Asked(NamedTuple):
    """A question with its accepted answers, or a reference where its rule has one. `id` is empty where the data set has none."""

    id: str
    question: str
    answers: list[str]
    ability: str
    reference: str = ""


def no_passages(row: Row) -> list[str]:
    return []


@dataclass(frozen=True)
class Published:
    """A data set on the hub, at `repository` with the configuration `configuration`.

    `splits` are those with answers. `ask` turns a row into a question, or into None if it has no answer that could be compared;
    it raises KeyError, TypeError, ValueError or IndexError for a row of another schema. `passages` are what the row brings to
    search in.
    """

    repository: str
    configuration: str
    splits: tuple[str, ...]
    rule: Rule
    licence: str
    ask: Callable[[Row], Asked | None]
    passages: Callable[[Row], list[str]] = field(default=no_passages)
