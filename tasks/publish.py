"""publish: the new weights go live in every engine, and it is proved."""

import json
import time
from pathlib import Path

from infra.engine.client import EngineClient
from infra.engine.settings import AdapterRoom
from tasks.checkpoints import ADAPTER, HF
from tasks.config import RunConfig
from tasks.errors import BrokenInvariantError
from tasks.node import act
from tasks.parts import Parts
from tasks.scope import Artifact, Scope
from tasks.update.folder import linear_layers


@act
async def publish(parts: Parts, scope: Scope, update: Artifact) -> Artifact:
    """Hot-swap the engines to the checkpoint that `update` made, then read version and canary back.

    Raises BrokenInvariantError when an engine answers with another version, or with other log-probs of the canary.
    """
    started = time.monotonic()
    version = str(scope.updates + 1)
    checkpoint = await parts.local_folder(update.path)
    for client in parts.engines:
        await install(client, parts.config, parts.initial, checkpoint, version)
    swapped = time.monotonic()
    worst = await prove(parts, scope, version)
    return Artifact(
        path=update.path,
        digest=update.digest,
        metrics={
            "publish/canary_error": worst,
            "publish/swap_seconds": swapped - started,
            "publish/proof_seconds": time.monotonic() - swapped,
        },
    )


async def serve(parts: Parts, scope: Scope) -> str:
    """The version that `scope.updates` updates make, served by every engine: published again where another one is."""
    version = str(scope.updates)
    for client in parts.engines:
        if await client.weights_version() != version:
            checkpoint = await parts.local_folder(scope.checkpoint(scope.updates)) if scope.updates else None
            await install(client, parts.config, parts.initial, checkpoint, version)
    return version


async def install(client: EngineClient, config: RunConfig, initial: Path, checkpoint: Path | None, version: str) -> None:
    """Make an engine serve a local checkpoint, or the initial model where there is none."""
    if adapter_room(config, initial):
        await client.publish_adapter(checkpoint / ADAPTER if checkpoint else None, version)
    else:
        await client.publish(checkpoint / HF if checkpoint else initial, version)


def adapter_room(config: RunConfig, initial: Path) -> AdapterRoom | None:
    """What the engines of a training run keep free for adapters; none where whole weights are published."""
    lora = config.update.lora
    if lora is None or lora.publish == "merged":
        return None
    return AdapterRoom(lora.rank, lora.target_modules or tuple(sorted(linear_layers(str(initial)))))


async def prove(parts: Parts, scope: Scope, version: str) -> float:
    """Largest difference, over all engines, between the engine's and the trainer's log-probs of the canary."""
    result = json.loads(parts.storage.read_bytes(f"{scope.folder}/update/result.json"))
    expected = result["canary_logprobs"]
    worst = 0.0
    for client in parts.engines:
        found = await client.weights_version()
        if found != version:
            raise BrokenInvariantError(f"engine {client.url} serves weights {found!r} after publishing {version!r}")
        scored = await client.score(result["canary_token_ids"])
        worst = max([worst, *(abs(a - b) for a, b in zip(scored, expected, strict=True))])
    if not worst <= parts.config.publish.tolerance:
        raise BrokenInvariantError(
            f"after publishing {version!r} engine and trainer differ by {worst:.2g} nats on the canary, more than "
            f"publish.tolerance {parts.config.publish.tolerance:g}; the weights did not arrive whole"
        )
    return worst
