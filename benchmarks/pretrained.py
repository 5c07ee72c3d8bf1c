"""A pretrained model for `learning.py`: fetched, evaluated as it is, and taught to act by a warm start."""

import json
import subprocess
import time
from pathlib import Path

MODEL = "smollm2-135m"


def fetched(nbrl: str, root: Path) -> Path:
    """The folder of the model in float32, which is fetched once."""
    folder = root / "models" / f"{MODEL}-float32"
    if not folder.exists():
        subprocess.run([nbrl, "model", "fetch", MODEL, str(folder), "--dtype", "float32"], cwd=root, check=True)
    return folder


def evaluated(nbrl: str, root: Path, recipe: str, model: Path) -> dict[str, float]:
    """Held-out scores of a model in a folder, by metric."""
    command = [nbrl, "evaluate", recipe, "--model", str(model), "--set", f"policy.path={model}", "--json"]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE)
    scores: dict[str, float] = json.loads(done.stdout)["scores"]
    return scores


def warmed(nbrl: str, root: Path, recipe: str, model: Path, seed: int) -> tuple[Path, float]:
    """The folder of a new warm start, and the seconds of the whole command."""
    out = root / "models" / f"learning-{recipe}-{seed}-{int(time.time())}"
    command = [nbrl, "warmstart", str(out), "--recipe", recipe, "--from", str(model), "--set", f"seed={seed}"]
    started = time.monotonic()
    subprocess.run(command, cwd=root, check=True)
    return out, time.monotonic() - started
