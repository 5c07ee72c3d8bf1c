"""The questions of a run as MLflow's dataset inputs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking

DIGEST = 12  # characters: MLflow takes 36, and shows them all
CONTEXT = "mlflow.data.context"


@dataclass(frozen=True)
class Dataset:
    """Questions of one environment and split: the SHA-256 and the address of the table that holds them."""

    name: str
    digest: str
    uri: str
    rows: int
    context: Literal["training", "evaluation"]


class Datasets:
    """The dataset inputs of one run."""

    def __init__(self, tracking: "Tracking") -> None:
        self._tracking = tracking

    def names(self) -> set[str]:
        """The names of those that the run has."""
        run = self._tracking.client.get_run(self._tracking.run_id)
        return {str(each.dataset.name) for each in run.inputs.dataset_inputs} if run.inputs else set()

    def log(self, datasets: Sequence[Dataset]) -> None:
        """Log them; those that the run has are not added again."""
        from mlflow.entities import Dataset as Entity
        from mlflow.entities import DatasetInput, InputTag

        inputs = [
            DatasetInput(
                Entity(
                    name=each.name,
                    digest=each.digest[:DIGEST],
                    source_type=each.uri.partition("://")[0] if "://" in each.uri else "local",
                    source=json.dumps({"uri": each.uri}),
                    profile=json.dumps({"num_rows": each.rows}),
                ),
                [InputTag(CONTEXT, each.context)],
            )
            for each in datasets
        ]
        if inputs:
            self._tracking.client.log_inputs(self._tracking.run_id, inputs)
