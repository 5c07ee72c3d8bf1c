"""publish: makes every engine serve the new weights, and proves that it does."""

import asyncio
import time

from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout import is_update_result
from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import effect
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


@effect
async def publish(services: Services, scope: Scope, update: Artifact) -> Artifact:
    """Swap the engines to the checkpoint that `update` made, then read version and canary back.

    Raises BrokenInvariantError if an engine returns another version or other log-probs of the canary.
    """
    started = time.monotonic()
    version = str(scope.updates + 1)
    await services.engines.publish(await services.local_folder(update.path), version)
    swapped = time.monotonic()
    key = next(filter(is_update_result, update.parts))
    result = await asyncio.to_thread(services.storage.read_json, key)
    worst = await services.engines.prove(version, result["canary_token_ids"], result["canary_logprobs"])
    tolerance = services.config.publish.tolerance
    if not worst <= tolerance:
        raise BrokenInvariantError(
            f"after publishing {version!r} engine and trainer differ by {worst:.2g} nats on the canary, more than "
            f"publish.tolerance {tolerance:g}; the weights did not arrive intact"
        )
    metrics = {
        "publish/canary_error": Metric(worst, "max"),
        "publish/swap_seconds": Metric(swapped - started, "sum"),
        "publish/proof_seconds": Metric(time.monotonic() - swapped, "sum"),
    }
    return Artifact(path=update.path, digest=update.digest, metrics=metrics)
