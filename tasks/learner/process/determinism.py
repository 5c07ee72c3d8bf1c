"""The same numbers from the same order, on whatever device."""

import os

import torch


def set_determinism(on: bool) -> None:
    """For the whole process: only operations that give the same bits each time, where torch has them; others then raise.

    On CUDA it must come before the first matrix product, which reads cuBLAS's workspace from the environment.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False
