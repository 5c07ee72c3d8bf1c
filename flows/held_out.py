"""Held-out evaluations of a run in training."""

import asyncio
from collections.abc import Sequence

from nbrl.flows.display.training import show
from nbrl.tasks.nodes.evaluate import evaluate
from nbrl.tasks.runs.history import Record, policy_after
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.runs.sweep import sweep_stage
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.services import Services


class HeldOut:
    """`scores` are held-out successes by updates: those of earlier attempts, and of what was evaluated since."""

    def __init__(self, services: Services, writer: Writer, scores: dict[int, float]) -> None:
        self._services, self._writer, self.scores = services, writer, scores
        self._results: dict[int, Artifact] = {}

    async def evaluate(self, records: Sequence[Record]) -> Artifact:
        """Evaluate the policy after `records`, unless this attempt has, and show its score."""
        services, scope = self._services, self._writer.evaluation(policy_after(self._writer.run, records))
        if scope.updates in self._results:
            return self._results[scope.updates]
        services.progress.begin(f"{scope.run}: {scope.title}")
        result = self._results[scope.updates] = await evaluate(services, scope)
        await asyncio.to_thread(sweep_stage, services.storage, scope.layout, [result])
        success, f1 = result.values["success"], result.values["f1"]
        self.scores[scope.updates] = success
        services.delivery.wake()
        services.progress.say(f"evaluation after {scope.updates:3d} updates   success {success:.3f}   F1 {f1:.3f}")
        await show(services, self._writer, records, self.scores)
        return result
