"""Makes results reproducible on any device."""

import os

import torch


def set_determinism(on: bool) -> None:
    """Let the whole process use only operations that give the same bits each time; operations without such a form raise.

    On CUDA it must come before the first matrix product, which reads cuBLAS's workspace from the environment.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False
