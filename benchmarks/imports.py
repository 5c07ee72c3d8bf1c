"""Processor seconds that the imports of nbrl's large processes take, with Python's garbage collector at work and without it.

nbrl imports without it (infra/process/garbage.py, and launch.py of the engine). Each import is a new process; the two ways take
turns, and what is printed of each are medians and the median of the rounds' ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from hardware import cpu_machine

ENGINE = Path(__file__).resolve().parents[1] / ".venv-engine/bin/python"
PROCESSES = {
    "command": (sys.executable, "nbrl.flows.train"),
    "prefect": (sys.executable, "prefect.server.api.server"),
    "rank": (sys.executable, "nbrl.tasks.learner.driver.worker"),
    "engine": (str(ENGINE), "sglang.launch_server"),
}


def cpu_s(python: str, module: str, before: str) -> float:
    """Processor seconds of a process that imports a module and ends at once."""
    code = f"import gc, os\n{before}\nimport {module}\nos._exit(0)"
    process = subprocess.Popen([python, "-W", "ignore", "-c", code], stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{python} cannot import {module}")
    return used.ru_utime + used.ru_stime


def measure(python: str, module: str, rounds: int) -> dict[str, float]:
    cpu_s(python, module, "")  # from the disk
    pairs = [(cpu_s(python, module, ""), cpu_s(python, module, "gc.disable()")) for _ in range(rounds)]
    return {
        "with_s": round(statistics.median(with_ for with_, _ in pairs), 2),
        "without_s": round(statistics.median(without for _, without in pairs), 2),
        "ratio": round(statistics.median(with_ / without for with_, without in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = {name: measure(*process, rounds) for name, process in PROCESSES.items()}
    print(json.dumps(found | {"rounds": rounds, "load": round(os.getloadavg()[0], 1), "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
