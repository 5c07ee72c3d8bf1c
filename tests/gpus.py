"""GPUs that are not there: what nvidia-smi would say of them."""

import pytest

from nbrl.infra import doctor, gpu

MIB = 81_559  # of a card of 80 GB


def fake(monkeypatch: pytest.MonkeyPatch, count: int = 1, mib: int = MIB, free: int = MIB, driver: str = "13.0") -> None:
    """Let this process find GPUs, until `forget`."""

    def said(*options: str) -> str:
        match options:
            case ("-L",):
                return "".join(f"GPU {place}: NVIDIA H100 80GB HBM3 (UUID: GPU-{place})\n" for place in range(count))
            case ("--query-gpu=memory.total", _):
                return f"{mib}\n" * count
            case ("--query-gpu=memory.free,memory.total", _):
                return f"{free}, {mib}\n" * count
        return f"| NVIDIA-SMI 580.65.06   CUDA Version: {driver} |\n"

    for module in (gpu, doctor):
        monkeypatch.setattr(module, "nvidia_smi", said)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    forget()


def forget() -> None:
    """Count GPUs again when next asked."""
    for each in (gpu.gpus, gpu.memory_of_gpus):
        each.cache_clear()
