"""Processor seconds that the imports of nbrl's large processes take, with Python's garbage collector as it is and as nbrl has it.

nbrl's command collects rarely; Prefect's server, ranks and the engine import without collections (infra/process/identity.py, and
launch.py of the engine). Each import is a new process; the two ways take turns, and what is printed of each are medians and the
median of the rounds' ratios.
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
RARELY = "from nbrl.infra.process.garbage import collect_rarely\ncollect_rarely()"
NEVER = "import gc\ngc.disable()"
PROCESSES = {
    "command": (sys.executable, "nbrl.flows.train", RARELY),
    "prefect": (sys.executable, "prefect.server.api.server", NEVER),
    "rank": (sys.executable, "nbrl.tasks.learner.driver.worker", NEVER),
    "engine": (str(ENGINE), "sglang.launch_server, sglang.srt.managers.scheduler", NEVER),
}


def cpu_s(python: str, modules: str, before: str) -> float:
    """Processor seconds of a process that imports modules and ends at once."""
    code = f"{before}\nimport os, {modules}\nos._exit(0)"
    line = [python, "-W", "ignore", "-c", code]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(f"{python} cannot import {modules}")
    return used.ru_utime + used.ru_stime


def measure(python: str, modules: str, before: str, rounds: int) -> dict[str, float]:
    cpu_s(python, modules, "")  # from the disk
    pairs = [(cpu_s(python, modules, ""), cpu_s(python, modules, before)) for _ in range(rounds)]
    return {
        "python_s": round(statistics.median(stock for stock, _ in pairs), 2),
        "nbrl_s": round(statistics.median(ours for _, ours in pairs), 2),
        "ratio": round(statistics.median(stock / ours for stock, ours in pairs), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    found = {name: measure(*process, rounds) for name, process in PROCESSES.items()}
    print(json.dumps(found | {"rounds": rounds, "load": round(os.getloadavg()[0], 1), "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
