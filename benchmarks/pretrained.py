"""A pretrained model for `learning.py`: fetched, evaluated as it is, and taught to act by a warm start."""

import hashlib
import json
import subprocess
import time
from pathlib import Path

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.warmstart.recipe import WarmstartArguments, load

MODEL = "smollm2-135m"


def fetched(nbrl: str, root: Path) -> Path:
    """Return the folder of the model in float32, which is fetched once."""
    folder = root / "models" / f"{MODEL}-float32"
    if not folder.exists():
        subprocess.run([nbrl, "model", "fetch", MODEL, str(folder), "--dtype", "float32"], cwd=root, check=True)
    return folder


def made(nbrl: str, root: Path, recipe: str) -> None:
    """Make the policy of a warm start from nothing where its training looks for it, unless it is there."""
    folder = root / "models" / recipe
    if not folder.exists():
        started = time.monotonic()
        subprocess.run([nbrl, "warmstart", str(folder), "--recipe", recipe], cwd=root, check=True)
        print(json.dumps({"recipe": recipe, "seconds_warm": round(time.monotonic() - started, 1)}), flush=True)


def evaluated(nbrl: str, root: Path, recipe: str, model: Path) -> dict[str, float]:
    """Held-out metrics of a model in a folder, by metric; by its name the evaluation is found again."""
    command = [nbrl, "evaluate", recipe, "--model", str(model), "--set", f"policy.path={model}", "--json"]
    done = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE)
    metrics: dict[str, float] = json.loads(done.stdout)["metrics"]
    return metrics


def warmed(nbrl: str, root: Path, recipe: str, model: Path, seed: int) -> tuple[Path, float]:
    """Return the folder of a warm start by these very settings, and the seconds of all commands that it took."""
    settings = load(WarmstartArguments(recipe=recipe, start=str(model)), [f"seed={seed}"], Storage(StorageSettings()))
    digest = hashlib.sha256(settings.model_dump_json().encode()).hexdigest()[:8]
    out = root / "models" / f"learning-{recipe}-{seed}-{digest}"
    taken = out.with_name(f"{out.name}.seconds")
    before = float(taken.read_text()) if taken.exists() else 0.0
    if out.exists():
        return out, before
    command = [nbrl, "warmstart", str(out), "--recipe", recipe, "--from", str(model), "--set", f"seed={seed}"]
    started = time.monotonic()
    try:
        subprocess.run(command, cwd=root, check=True)
    finally:
        taken.write_text(str(before + time.monotonic() - started))
    return out, float(taken.read_text())
