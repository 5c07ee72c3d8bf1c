"""What the driver and Ray Train's controller know of the ranks. It imports no torch, which would take both seconds."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.callbacks.datasets import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from nbrl.infra.process.garbage import without_collection


class _Backend(Backend):
    share_cuda_visible_devices = True  # NCCL reaches the GPUs of other ranks on the same machine


@dataclass
class MeetThemselves(BackendConfig):
    """Ranks join their process group by themselves (process/group.py)."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Backend


def rank(config: dict[str, Any]) -> None:
    """Run a rank in the process that Ray Train started for it."""
    sys.modules["scipy"] = None  # type: ignore[assignment]  # transformers would import much of it, for losses of object detection
    # Batches of many lengths would leave a GPU's memory in pieces; torch reads it when it is imported.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    with without_collection():
        from nbrl.tasks.learner.driver.worker import loop

    loop(config)


class LearnerTrainer(DataParallelTrainer):
    """Its ranks get their data in orders, so that there is no actor for datasets. The actor that gives back the ranks' room when
    Ray Train's controller died asks Ray's dashboard, which only a cluster that was `joined` may have.
    """

    def __init__(self, *given: Any, joined: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self._unused = (DatasetsCallback,) if joined else (DatasetsCallback, PlacementGroupCleanerCallback)

    def _create_default_callbacks(self) -> list[Any]:
        return [each for each in super()._create_default_callbacks() if not isinstance(each, self._unused)]
