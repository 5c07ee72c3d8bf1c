"""Judges whether a checkpoint may take the champion's place: better on the same held-out questions, and worse in no ability."""

from collections.abc import Mapping
from typing import NamedTuple

from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.figures import ComparedQuestion
from nbrl.tasks.comparison.scored import Side, read
from nbrl.tasks.errors import ConfigError, NoGainError
from nbrl.tasks.evaluation.statistics import Difference, difference
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.runs.checkpoints import checkpoint
from nbrl.tasks.runs.pins import recorded
from nbrl.tasks.runs.run import known_run

FEWEST = 20  # questions in common; of fewer, the interval of a bootstrap says too much
COMMON = 0.5  # share of the questions before that both were asked


class Gate(NamedTuple):
    """The gain over the policy before, in all and by ability, and the reasons against it; none where it may take the place."""

    gain: Difference | None
    by_ability: dict[str, Difference]
    against: list[str]


def judge_gain(before: Side, after: Side, margin: float) -> Gate:
    """Compare a policy with that before it, a champion for example, on questions that both were asked (paired bootstrap).

    It must be better with all of the 95 % interval, and in no ability worse than by the margin in the mean.
    """
    common = sorted(before.questions.keys() & after.questions.keys())
    if len(common) < max(FEWEST, COMMON * len(before.questions)):
        asked_too_few = (
            f"both were asked {len(common)} questions in common, of {len(before.questions)} that were asked before; "
            f"at least {FEWEST} and half of them are needed"
        )
        return Gate(None, {}, [asked_too_few])
    gain = _gain(before.questions, after.questions, common)
    abilities: dict[str, list[ComparedQuestion]] = {}
    for each in common:
        abilities.setdefault(after.abilities[each], []).append(each)
    by_ability = {name: _gain(before.questions, after.questions, asked) for name, asked in sorted(abilities.items())}
    against = []
    if gain.low <= 0:
        against.append(f"its gain in success on {len(common)} questions is {gain}: the 95 % interval does not lie above 0")
    for name, found in by_ability.items():
        if found.value < -margin:
            against.append(f"{name} is worse by {-found.value:.3f}, and {margin:g} is allowed ({found.questions} questions)")
    return Gate(gain, by_ability, against)


def check_better(storage: Storage, name: str, updates: int | None, margin: float) -> str:
    """Return in a sentence that a run's checkpoint may take the place of its recipe's champion: it is better on the same held-out
    questions, and in no ability worse by more than the margin. Where there is no champion, it is compared with what its run began
    with.

    Raises NoGainError with all reasons against it otherwise, and ConfigError where one of both was not evaluated.
    """
    recipe = known_run(storage, name).recipe
    current = recorded(storage, recipe)
    candidate = f"{name}@{updates_of(checkpoint(storage, name, updates))}"
    before = f"{name}@0" if current is None else f"{current.run}@{current.updates}"
    champion, other = read(storage, before), read(storage, candidate)
    if champion.identity == other.identity:
        raise ConfigError(f"{candidate} is {'what its run began with' if current is None else f'the champion of {recipe}'}")
    gate = judge_gain(champion, other, margin)
    if gate.against:
        whom = "its run began with" if current is None else f"is the champion of {recipe}"
        raise NoGainError(f"{candidate} stays behind {before}, which {whom}: {'; '.join(gate.against)}")
    return f"its success is better than that of {before} by {gate.gain}"


def _gain(
    before: Mapping[ComparedQuestion, float], after: Mapping[ComparedQuestion, float], asked: list[ComparedQuestion]
) -> Difference:
    return difference([before[each] for each in asked], [after[each] for each in asked])
