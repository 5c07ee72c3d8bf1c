"""Measures on one GPU what no CPU can show of the learner: whether it computes the same numbers, how fast, in how much memory.

    python benchmarks/gpu_day.py --out FOLDER [--parts probe,attention] [--device cpu --tiny]

Every part is a process with a time limit and makes one JSON row: it is printed, and stands in FOLDER/PART.json from the first of
its measures on, so that whatever ends a part leaves what it had measured. A measure or part that fails has its error in the
row, and the others go on; the exit status is then 1. The last line says which parts failed.

It needs what nbrl.tasks.learner imports and nothing of Ray, Prefect or MLflow, and makes models with random weights. Only the
part `engine` needs the environment with SGLang, and says so where there is none. With `--device cpu --tiny` it goes the same way
on a CPU with little models; such figures mean nothing.
"""

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMITS_S = {"probe": 120, "attention": 300, "gradient": 240, "utilisation": 420, "learner": 420, "publish": 180, "memory": 240}
LIMITS_S["engine"] = 600
HERE = Path(__file__).resolve()


def run_part(part: str, given: argparse.Namespace) -> dict[str, Any]:
    """Run a part in a process of its own, and return its row."""
    path = given.out / f"{part}.json"
    path.unlink(missing_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])}
    environment["OMP_NUM_THREADS"] = "1"  # as a worker of the learner has by default
    if given.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, str(HERE), "--within", part, "--out", str(given.out), "--device", given.device]
    command += ["--measures", ",".join(given.measures)] if given.measures else []
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command + ["--tiny"] * given.tiny, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        try:
            status = process.wait(min(given.limit, LIMITS_S[part]))
            died = f"ended with status {status}" if status else ""
        except subprocess.TimeoutExpired:
            died = "took too long"
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it started goes with it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        said = log.read()
    row: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"part": part, "errors": {}}
    if died:
        row["errors"]["part"] = f"{died}: {said[-2000:]}"
        path.write_text(json.dumps(row))
    return row


def within(part: str, given: argparse.Namespace) -> None:
    """Run a part in this process."""
    import torch
    import transformers
    from gpu.row import Given, Row

    transformers.utils.logging.disable_progress_bar()
    wanted = given.device if given.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as scratch:
        row = Row(part, given.out / f"{part}.json", given.measures)
        importlib.import_module(f"gpu.{part}").measure(row, Given(torch.device(wanted), given.tiny, Path(scratch)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(LIMITS_S), help="some of them, with commas (default: all)")
    words = "take only measures in whose names one of these words, with commas between them, stands"
    parser.add_argument("--measures", type=lambda text: text.split(","), default=[], help=words)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--tiny", action="store_true", help="little models and trees, to try the way")
    parser.add_argument("--out", type=Path, required=True, help="folder for the rows")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds of a part, where its own limit is longer")
    parser.add_argument("--within", choices=list(LIMITS_S), help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.within:
        within(given.within, given)
        return
    parts = given.parts.split(",")
    if unknown := [part for part in parts if part not in LIMITS_S]:
        parser.error(f"there is no part {unknown[0]!r}, only {', '.join(LIMITS_S)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the end of this process ends the part's
    began, failed = time.perf_counter(), {}
    for part in parts:
        row = run_part(part, given)
        print(json.dumps(row), flush=True)
        if row["errors"]:
            failed[part] = list(row["errors"])
    print(json.dumps({"parts": parts, "failed": failed, "total_s": round(time.perf_counter() - began, 1)}))
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
