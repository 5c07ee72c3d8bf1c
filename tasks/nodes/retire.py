"""retire: names the questions that are not asked again."""

from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import RETIRED_SCHEMA, retired
from nbrl.tasks.services.services import Services


@durable
def retire(
    services: Services, scope: Scope, before: Artifact | None, prompts: Artifact, rewards: Artifact, share: float, round_: int
) -> Artifact:
    """Add the questions of a round of which at least this share of their group was right to those retired `before`."""
    known = RETIRED_SCHEMA.empty_table() if before is None else services.read(before)
    table = retired(known, services.read(prompts), services.read(rewards), share, scope.iteration)
    path = scope.layout.round(round_).retired
    digest = services.storage.write_table(path, table)
    return Artifact(path=path, digest=digest, metrics={"select/retired": Metric(float(len(table)), "last")})
