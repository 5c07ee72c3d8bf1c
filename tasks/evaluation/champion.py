"""The score that the next model has to beat."""

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.evaluation.summary import EvaluationSummary, read
from nbrl.tasks.layout import EVALUATIONS, name_of
from nbrl.tasks.runs.champions import recorded


def champion_score(storage: Storage, summary: EvaluationSummary) -> float | None:
    """Success of the champion of the recipe in its newest evaluation that asked as this one did.

    None without a champion, if it was never evaluated in this way, and for an evaluation of the champion itself.
    """
    try:
        champion = recorded(storage, summary.recipe)
    except DamagedError:
        return None
    if champion is None:
        return None
    found: list[EvaluationSummary] = []
    for name in sorted({name_of(key) for key in storage.list(EVALUATIONS)} - {summary.name}):
        try:
            other = read(storage, name)
        except DamagedError:
            continue
        if other is not None and other.subject.run == champion.run and other.subject.updates == champion.updates:
            found += [other] if _asked_alike(other, summary) else []
    newest = max(found, key=lambda each: each.finished, default=None)
    return None if newest is None else newest.scores[0].headline(newest.mode).value


def _asked_alike(one: EvaluationSummary, other: EvaluationSummary) -> bool:
    """Whether two evaluations had the same environments and as many questions, asked in the same way, of different models."""
    same = (one.mode, one.samples, one.environments, one.scores[0].questions)
    return same == (other.mode, other.samples, other.environments, other.scores[0].questions) and (
        one.subject.digest != other.subject.digest
    )
