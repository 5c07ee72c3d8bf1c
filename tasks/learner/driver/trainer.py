"""Ray Train's trainer without what nbrl's ranks have no use for: each actor would take a start processor seconds, and memory."""

from typing import Any

from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer


class LearnerTrainer(DataParallelTrainer):
    """Its ranks get their data in orders, so that there is no actor for datasets. The actor that gives back the ranks' room when
    Ray Train's controller died asks Ray's dashboard, which only a cluster that was `joined` may have.
    """

    def __init__(self, *given: Any, joined: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unused = (DatasetsCallback,) if joined else (DatasetsCallback, PlacementGroupCleanerCallback)

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, self._unused)]
