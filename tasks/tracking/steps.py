"""The steps at which a run's metrics are shown: iterations, and evaluations of the policies that they made."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from nbrl.infra.storage import Storage
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.results import NodeResult, evaluation_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights


class MadePolicy(NamedTuple):
    """A policy, and when its iteration was finished (seconds since 1970)."""

    weights: Weights
    finished: float


class Steps:
    """The iterations of a run up to one, and the policies that they made."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.count = 0
        self.policies: dict[int, MadePolicy] = {
            0: MadePolicy(Weights(digest=run.policy), 0.0)
        }  # each at the first step it was there

    @property
    def updates(self) -> int:
        """Return the number of updates that these iterations made."""
        return max(made.weights.updates for made in self.policies.values())

    def updated(self, record: Record) -> bool:
        """Return whether the next iteration made a policy."""
        return record.updates > self.updates

    def add(self, record: Record) -> None:
        """Count the next iteration."""
        updated = self.updated(record)
        self.count += 1
        if updated:
            self.policies[self.count] = MadePolicy(record.policy, record.finished)

    def evaluations(self, storage: Storage, besides: Collection[int]) -> Iterator[tuple[int, Weights, NodeResult]]:
        """Yield the finished evaluations of these policies with their steps, besides those at some steps."""
        layout = self._run.layout
        folders = {"/".join(key.split("/")[:4]) for key in storage.list(layout.evaluations)}
        for step, (weights, _) in self.policies.items():
            if step in besides or layout.evaluation(weights.updates).folder not in folders:
                continue  # without a request for each policy: most may have no evaluation
            if (result := evaluation_of(storage, self._run, weights)) is not None:
                yield step, weights, result


def eval_metrics(result: NodeResult) -> dict[str, float]:
    """Return the scores of an evaluation, by the names that they have beside the iterations' metrics."""
    return {f"eval/{name}": value for name, value in result.artifact.values.items()}
