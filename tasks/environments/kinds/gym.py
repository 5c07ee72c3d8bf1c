"""Procedural tasks of the package reasoning-gym (arXiv 2505.24760): questions with a scorer of their own."""

import importlib.util
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.kinds.gym_battery import paid
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.errors import ConfigError, RewardError, did_you_mean
from nbrl.tasks.reward.rules.rule import GYM
from nbrl.tasks.seeds import derive_seed

PACKAGE = "reasoning_gym"
# Tasks that cannot be trained on whatever their scorers pay, and why.
REFUSED = {
    "propositional_logic": "its scorer pays a part for answers that say nothing",
    "list_functions": "its questions change from one reading to the next",
    "arc_agi": "its questions do not survive being stored",
    "rearc": "its questions do not survive being stored",
    "composite": "name the tasks themselves",
}


class GymEnvironment(Environment):
    """Tasks of reasoning-gym, in turns. They are judged by their own scorers, each in a confined process."""

    kind: Literal["reasoning_gym"] = Field(description="tasks of reasoning-gym; needs the extra `gym`")
    tasks: tuple[str, ...] = Field(min_length=1, description="names of tasks, for example gcd and chain_sum; each is an ability")
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict, description="name of a task: its own settings")
    seed: int = Field(0, description="seed of the questions")
    train: int = Field(1024, ge=1, le=100_000, description="questions to train on")
    held_out: int = Field(256, ge=1, le=10_000, description="questions to evaluate on")

    def load(self, key: str) -> Tables:
        """Return training questions, and held-out ones that differ from all of them. Raises ConfigError if a task has too few."""
        check_tasks(self, key)
        for name in self.tasks:
            if reason := _paid(name, self.settings.get(name, {})):
                raise ConfigError(f"{key}.tasks: {name} cannot be trained on, for its scorer is at fault: {reason}; leave it out")
        return self.drawn(key)

    def drawn(self, key: str) -> Tables:
        """Return the same as `load`, for tasks that are known to be sound."""
        train = _questions(self, key, "train", self.train, frozenset())
        known = frozenset(train["question"].to_pylist())
        return Tables(train, _questions(self, key, "held_out", self.held_out, known))


def check_tasks(settings: GymEnvironment, key: str) -> None:
    """Raises ConfigError unless the package is installed and makes a question of every task."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(f"{key}.kind reasoning_gym needs the package reasoning-gym: pip install 'nbrl[gym]'")
    from reasoning_gym.factory import DATASETS

    for name in [*settings.tasks, *settings.settings]:
        if name in REFUSED:
            raise ConfigError(f"{key}.tasks: {name} cannot be trained on: {REFUSED[name]}; leave it out")
        if name not in DATASETS:
            raise ConfigError(f"{key}.tasks: reasoning-gym has no task {name!r}; {did_you_mean(name, DATASETS)}")
    if unused := sorted(set(settings.settings) - set(settings.tasks)):
        raise ConfigError(
            f"{key}.settings has {unused[0]}, which is none of {key}.tasks; name it there, or leave its settings out"
        )
    for name in settings.tasks:
        _task(name, settings.settings.get(name, {}), seed=0, size=1, key=key)


def _paid(name: str, settings: Mapping[str, Any]) -> str:
    try:
        return paid(name, json.dumps(settings, sort_keys=True))
    except RewardError as error:
        raise ConfigError(str(error)) from error


def _questions(settings: GymEnvironment, key: str, split: str, count: int, known: frozenset[str]) -> pa.Table:
    """Return so many questions of a split, the tasks in turns; none of them is `known` and none is there twice."""
    source = f"reasoning-gym {version('reasoning-gym')}"
    drawn = {name: _Drawn(name, settings, key, split, count) for name in settings.tasks}
    seen = set(known)
    rows: list[dict[str, Any]] = []
    for number in range(count):
        name = settings.tasks[number % len(settings.tasks)]
        entry = drawn[name].next(seen)
        seen.add(entry["question"])
        reference = {"task": name, "settings": settings.settings.get(name, {}), "entry": entry}
        rows.append(
            {
                "id": f"{name}-{split}-{settings.seed}-{number:06d}",
                "question": entry["question"],
                "answers": [entry["answer"]] if entry["answer"] is not None else [],
                "ability": name,
                "source": source,
                "rule": GYM,
                "reference": json.dumps(reference),
            }
        )
    return table_of(rows)


class _Drawn:
    """The questions of one task of one split, in the order of its seed."""

    SPARE = 20  # items drawn for each one that is needed, as many are alike in easy tasks

    def __init__(self, name: str, settings: GymEnvironment, key: str, split: str, count: int) -> None:
        self._name, self._key = name, key
        seed = derive_seed(settings.seed, GYM, name, split)
        self._items = iter(_task(name, settings.settings.get(name, {}), seed, self.SPARE * count, key))

    def next(self, seen: set[str]) -> dict[str, Any]:
        for item in self._items:
            entry: dict[str, Any] = json.loads(json.dumps(item))
            if entry["question"] not in seen:
                return entry
        raise ConfigError(
            f"{self._key}.tasks: reasoning-gym's task {self._name} has too few different questions; ask for fewer in train and "
            "held_out, or make it harder in settings"
        )


def _task(name: str, settings: Mapping[str, Any], seed: int, size: int, key: str) -> Any:
    """Return the task as a data set of `size` items. Raises ConfigError for settings that it does not take."""
    from reasoning_gym.factory import create_dataset

    try:
        return create_dataset(name, seed=seed, size=size, **settings)
    except Exception as error:  # its settings are checked by assertions and by Python's own errors
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{key}.settings.{name}: reasoning-gym refuses it: {type(error).__name__}: {reason}") from error
