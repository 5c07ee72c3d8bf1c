"""The score that the next model has to beat."""

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.settings import Environments
from nbrl.tasks.environments.stored import digests
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.summary import EvaluationSummary, read
from nbrl.tasks.layout.runs import EVALUATIONS, EvaluationLayout, name_of
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.runs.champions import champion, recorded
from nbrl.tasks.runs.run import find_run, stored_config


def champion_score(storage: Storage, summary: EvaluationSummary) -> float | None:
    """Success of the champion of the recipe in its newest evaluation that asked as this one did.

    None without a champion, if it was never evaluated in this way, and for an evaluation of the champion itself.
    """
    try:
        best = recorded(storage, summary.recipe)
    except DamagedError:
        return None
    if best is None:
        return None
    found: list[EvaluationSummary] = []
    for name in sorted({name_of(key) for key in storage.list(EVALUATIONS)} - {summary.name}):
        try:
            other = read(storage, name)
        except DamagedError:
            continue
        if other is not None and other.subject.run == best.run and other.subject.updates == best.updates:
            found += [other] if other.subject.digest != summary.subject.digest and _asked_alike(storage, other, summary) else []
    newest = max(found, key=lambda each: each.finished, default=None)
    return None if newest is None else newest.scores[0].headline(newest.mode).value


def unusable_champion(storage: Storage, recipe: str) -> str:
    """Why the champion of a recipe cannot be used, in a sentence; empty if it can, or if there is none."""
    try:
        if recorded(storage, recipe) is not None:
            champion(storage, recipe)
    except (ConfigError, DamagedError) as error:
        return str(error)
    return ""


def _asked_alike(storage: Storage, one: EvaluationSummary, other: EvaluationSummary) -> bool:
    """Whether two evaluations asked the same questions in the same way and scored the answers by the same rules."""
    first, second = (
        (each.mode, each.samples, each.environments, each.scores[0].questions, _questions(storage, each), _rules(storage, each))
        for each in (one, other)
    )
    return first == second


def _questions(storage: Storage, summary: EvaluationSummary) -> str | None:
    """The digest of the questions, None if it was lost."""
    data = EvaluationLayout(summary.name).data
    return (digests(storage, data) or {}).get(data.split("held_out"))


def _rules(storage: Storage, summary: EvaluationSummary) -> tuple[RewardSettings, Environments] | None:
    known = find_run(storage, summary.name, EVALUATIONS)
    config = None if known is None else stored_config(storage, known)
    return None if config is None else (config.reward, config.environments)
