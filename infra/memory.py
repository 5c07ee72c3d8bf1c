"""Reports the free memory of this machine."""

from pathlib import Path


def available_mb() -> int:
    """Megabytes that new programs can have without swapping, as the system estimates it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) >> 10
