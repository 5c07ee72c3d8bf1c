"""Where it is kept how a model of a folder is forwarded, which is proved once for its configuration. Imports no torch."""

import hashlib
import json
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from nbrl.infra.node_cache import NodeSettings
from nbrl.infra.parse import json_value
from nbrl.infra.paths import expanded
from nbrl.tasks.errors import UpdateError

RULES = 3  # raised when what is proved changes
PROOF_S = 300.0


def kept_at(path: str, wanted: str, nodes: NodeSettings) -> Path:
    """Return the file of this machine for a proof about the configuration of a folder, and the versions that it was made with."""
    config = (Path(path) / "config.json").read_bytes()
    said = json.dumps([hashlib.sha256(config).hexdigest(), wanted, version("transformers"), version("torch"), RULES])
    return expanded(nodes.cache).absolute().parent / "forwards" / f"{hashlib.sha256(said.encode()).hexdigest()}.json"


def kind_of(path: str, wanted: str, nodes: NodeSettings) -> str:
    """Return whether the model is forwarded as `tree` or as `paths`, from what is kept or by a proof in a process of its own.

    Raises UpdateError, in the words of the proof, if it can be forwarded in neither way.
    """
    kept = kept_at(path, wanted, nodes)
    if not kept.is_file():
        command = [sys.executable, "-m", "nbrl.tasks.learner.step.equality", path, wanted, nodes.cache]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROOF_S, check=False)
        except subprocess.TimeoutExpired:
            raise UpdateError(f"{path}: the proof of how it can be forwarded took more than {PROOF_S:g} s") from None
        if done.returncode:
            raise UpdateError(f"{path}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'its proof ended'}")
    with suppress(OSError, ValueError, TypeError, KeyError):
        return str(json_value(kept.read_text())["kind"])
    return ""
