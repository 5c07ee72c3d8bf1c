"""Decides which devices the ranks use."""

import os

import torch

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.settings import UpdateSettings


def on_cuda(settings: UpdateSettings, gpus: float, grows: bool = False) -> bool:
    """Whether every rank uses one of the Ray cluster's `gpus`; more can appear only if the cluster `grows`.

    Raises UpdateError for settings that act only with a GPU, and if ranks would wait for GPUs in vain or leave them idle.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not gpus):
        if settings.offload:
            raise UpdateError(
                f"update.offload {', '.join(settings.offload)} moves state from a GPU to the host, "
                "but the learner runs on the CPU: leave it out, or add GPUs"
            )
        return False
    if settings.dtype == "float64":
        raise UpdateError(
            "update.dtype float64 has no attention kernel on a GPU: use float32 or bfloat16, or set update.device to cpu"
        )
    if gpus < settings.workers and not (grows and settings.device == "cuda"):
        raise UpdateError(
            f"update.workers {settings.workers} need a GPU each, and there are {gpus:g}: lower update.workers, "
            f"or set update.device to cpu"
        )
    return True


def set_determinism(on: bool) -> None:
    """Let the whole process use only operations that give the same bits each time; operations without such a form raise.

    On CUDA it must come before the first matrix product, which reads cuBLAS's workspace from the environment.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False
