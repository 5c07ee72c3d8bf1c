"""Events that Prefect's automations can act on."""

from prefect.events import emit_event

from nbrl.infra.storage import Storage
from nbrl.tasks.evaluation.deliver import champion_score
from nbrl.tasks.evaluation.summary import EvaluationSummary

FINISHED, WORSE = "nbrl.evaluation.finished", "nbrl.evaluation.worse"


def tell_of(storage: Storage, summary: EvaluationSummary) -> None:
    """Emit FINISHED for an evaluation, and WORSE after it if the champion's success is known and higher."""
    success, champion = summary.scores[0].headline(summary.mode).value, champion_score(storage, summary)
    resource = {
        "prefect.resource.id": f"nbrl.evaluation.{summary.name}",
        "prefect.resource.name": summary.name,
        "nbrl.run": summary.subject.run,
        "nbrl.recipe": summary.recipe,
    }
    payload = {"success": success, "champion": champion, "updates": summary.subject.updates, "model": summary.subject.name}
    emit_event(FINISHED, resource, payload=payload | {"metrics": summary.metrics})
    if champion is not None and success < champion:
        emit_event(WORSE, resource, payload=payload)
