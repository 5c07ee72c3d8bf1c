"""What a start of `nbrl train tiny-cpu` costs: processor seconds by kind of process until it has come so far, and wall seconds.

Usage: python benchmarks/start.py [--rounds 3] [--against FOLDER]

Each round starts a training in a new home and ends it after its first iteration. Every half second the processor time of each of
its processes is read from /proc. Its marks are the first trajectory on the storage, the end of the first evaluation, and the end
of the first iteration. Where root can make a control group of its own (cgroup v1, cpuacct), its processes are those of the group,
and `unseen` is what the group used beyond them: processes that came and went between two looks. Elsewhere they are those below
the command.

With `--against`, another checkout with environments of its own takes turns with this one. The kinds of a process are in `kind`; a
worker of Ray counts as what it was at last, `ray worker, never used` if it was nothing. Wall seconds are those of this machine
with whatever else ran on it: trust the processor seconds, and the ratios.

Prints one JSON line last: of each checkout the medians over the rounds, and with `--against` the ratios of the sums.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from hardware import cpu_machine

HERE = Path(__file__).resolve().parents[1]
CPUACCT = Path("/sys/fs/cgroup/cpuacct")
LOOK_S, LIMIT_S, END_S = 0.5, 900.0, 60.0
TICKS = os.sysconf("SC_CLK_TCK")
SMALL = ["iterations=3", "rollout.prompts=8", "rollout.group_size=4", "evaluate.questions=12", "select.drop_rate=0.0"]
SMALL += ["environments.world.train=64", "environments.world.held_out=12"]
MARKS = {
    "trajectory": "runs/*/evaluations/*/**/*.parquet",
    "evaluation": "runs/*/evaluations/*/nodes/*",
    "iteration": "runs/*/iterations/000000/record.json",
}
# What the command line of a process has in it; the first that fits counts.
KINDS = [
    (r"^ray::IDLE", "ray worker, never used"),
    (r"^ray::(\w+)", "ray {}"),
    (r"default_worker\.py", "ray worker, never used"),
    (r"gcs_server", "ray gcs"),
    (r"raylet/raylet", "ray raylet"),
    (r"dashboard/agent\.py|^ray-dashboard-DashboardAgent", "ray dashboard agent"),
    (r"runtime_env/agent|^ray-runtime_env", "ray runtime environment agent"),
    (r"dashboard/dashboard\.py|^ray-dashboard", "ray dashboard"),
    (r"ray\.util\.client\.server", "ray client server"),
    (r"autoscaler/_private/monitor\.py|autoscaler/v2/monitor\.py", "ray autoscaler monitor"),
    (r"log_monitor\.py", "ray log monitor"),
    (r"bin/ray start|own_ray/head", "ray start"),
    (r"process/keeper\.py", "keepers"),
    (r"prefect_app", "prefect server"),
    (r"sglang::(\w+)", "engine {}"),
    (r"launch(_gpu)?\.py", "engine launch"),
    (r"mlflow", "mlflow"),
    (r"bwrap|inside/|zygote|kernel", "kernels"),
    (r"resource_tracker|forkserver|spawn_main", "python helpers"),
    (r"bin/nbrl", "nbrl train"),
]


def kind(line: str) -> str:
    for pattern, name in KINDS:
        if (found := re.search(pattern, line)) is not None:
            return name.format(*found.groups()) if "{}" in name else name
    return f"other: {line.split(' ')[0].rpartition('/')[2][:30] or 'without a name'}"


@contextmanager
def group() -> Iterator[Path | None]:
    """A new control group that accounts processor time, where one can be made."""
    folder = CPUACCT / f"nbrl-start-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        until = time.monotonic() + END_S
        while folder.exists() and time.monotonic() < until:
            time.sleep(LOOK_S)  # until nobody is in it
            with suppress(OSError):
                folder.rmdir()


class Usage:
    """The processor seconds of all processes of a training, those that ended too."""

    def __init__(self, command: int, folder: Path | None) -> None:
        self._command, self._folder = command, folder
        self._seen: dict[tuple[int, str], tuple[str, float]] = {}

    def look(self) -> None:
        for pid in self._pids():
            with suppress(OSError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                key, seconds = (pid, fields[19]), (int(fields[11]) + int(fields[12])) / TICKS
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                name, before = kind(line) if line else "", self._seen.get(key, ("", 0.0))[0]
                # It has no line any more once it ends, and a worker of Ray is idle between two calls.
                kept = before if not name or (before and name == "ray worker, never used") else name
                self._seen[key] = (kept, seconds)

    def by_kind(self) -> dict[str, float]:
        found = defaultdict[str, float](float)
        for name, seconds in self._seen.values():
            found[name or "other: without a name"] += seconds
        if self._folder is not None:
            used = int((self._folder / "cpuacct.usage").read_text()) / 1e9
            found["unseen"] = max(0.0, used - sum(found.values()))
        return dict(found)

    def _pids(self) -> list[int]:
        if self._folder is not None:
            return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]
        with suppress(psutil.Error):
            return [self._command, *(each.pid for each in psutil.Process(self._command).children(recursive=True))]
        return []


def started(checkout: Path, home: Path, folder: Path | None) -> subprocess.Popen[bytes]:
    settings = [*SMALL, f"home={home}", f"storage.root={home}/storage"]
    line = [str(checkout / ".venv/bin/nbrl"), "train", "tiny-cpu", "--run", "start"]
    line += [part for each in settings for part in ("--set", each)]
    enter = f"echo $$ >{folder}/cgroup.procs; " if folder else ""
    with (home.parent / "output").open("wb") as output:
        return subprocess.Popen(["sh", "-c", f'{enter}exec "$@"', "sh", *line], stdout=output, stderr=output, cwd=home.parent)


def measure(checkout: Path) -> dict[str, tuple[float, dict[str, float]]]:
    """Wall seconds and processor seconds by kind at each mark."""
    found: dict[str, tuple[float, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="nbrl-start-", ignore_cleanup_errors=True) as name, group() as folder:
        home = Path(name, "home")
        began = time.monotonic()
        process = started(checkout, home, folder)
        usage = Usage(process.pid, folder)
        try:
            while len(found) < len(MARKS):
                time.sleep(LOOK_S)
                usage.look()
                now = time.monotonic() - began
                for mark, pattern in MARKS.items():
                    if mark not in found and next((home / "storage").glob(pattern), None) is not None:
                        found[mark] = (now, usage.by_kind())
                if process.poll() is not None or now > LIMIT_S:
                    raise RuntimeError(f"{checkout}: {(home.parent / 'output').read_text()[-2000:]}")
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(END_S)
    return found


def in_all(result: dict[str, tuple[float, dict[str, float]]], mark: str) -> float:
    return sum(result[mark][1].values())


def medians(results: list[dict[str, tuple[float, dict[str, float]]]]) -> dict[str, object]:
    def median(of: Callable[[dict[str, tuple[float, dict[str, float]]]], float]) -> float:
        return round(statistics.median(map(of, results)), 1)

    told: dict[str, object] = {}
    for mark in MARKS:
        kinds = {name for result in results for name in result[mark][1]}
        each = {name: median(lambda result: result[mark][1].get(name, 0.0)) for name in kinds}  # noqa: B023  # called at once
        told[mark] = {
            "wall_s": median(lambda result: result[mark][0]),  # noqa: B023
            "processor_s": median(lambda result: in_all(result, mark)),  # noqa: B023
            "by_kind": dict(sorted(each.items(), key=lambda item: -item[1])),
        }
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, with its environments")
    given = parser.parse_args()
    checkouts = {"nbrl": HERE} | ({"against": given.against.resolve()} if given.against else {})
    results = defaultdict[str, list[dict[str, tuple[float, dict[str, float]]]]](list)
    for number in range(given.rounds):
        for name in (checkouts, dict(reversed(checkouts.items())))[number % 2]:
            results[name].append(found := measure(checkouts[name]))
            shown = ", ".join(f"{mark} {in_all(found, mark):.1f} s in {found[mark][0]:.1f} s" for mark in MARKS)
            print(f"round {number + 1}, {name}: {shown}", file=sys.stderr, flush=True)
    told: dict[str, object] = {name: medians(each) for name, each in results.items()}
    if given.against:
        pairs = list(zip(results["nbrl"], results["against"], strict=True))
        told["ratio"] = {
            mark: round(statistics.median(in_all(ours, mark) / in_all(other, mark) for ours, other in pairs), 3) for mark in MARKS
        }
    print(json.dumps(told | {"rounds": given.rounds, "load": round(os.getloadavg()[0], 1), "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
