"""Ray Train's trainer without what nbrl's ranks have no use for."""

from typing import Any

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


class LearnerTrainer(DataParallelTrainer):
    """Its ranks get their data in orders. An actor for datasets would take each start 1.5 processor seconds, and memory."""

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, DatasetsCallback)]
