"""Checks the engine's environment without starting it: its version of SGLang, and whether that accepts a command line."""

import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from nbrl.infra.engine.command import command
from nbrl.infra.engine.settings import EngineSettings

LIMIT_S = 120.0
PREFIX = "sglang: error: "  # argparse before its word
SCRIPT = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
ServerArgs.add_cli_args(parser)
parser.parse_args(sys.argv[1:])
"""


NEEDED = Path(__file__).parent / "environment" / "pyproject.toml"
PINNED = "sglang=="


def refusal(settings: EngineSettings) -> str | None:
    """Return SGLang's error about the engine's command line with `extra_args`, after about ten seconds.

    Empty when it takes it, None when it cannot be asked.
    """
    line = command(settings, Path("model"), port=0, seed=0)
    flags = line[next(place for place, word in enumerate(line) if word.startswith("--")) :]
    try:
        done = subprocess.run(
            [settings.python, "-I", "-c", SCRIPT, *flags],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env={"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not done.returncode:
        return ""
    complaints = [line for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    return complaints[-1].removeprefix(PREFIX) if complaints else None


def needed() -> str:
    """Return the version that set-up installs."""
    project = tomllib.loads(NEEDED.read_text())["project"]
    return next(each.removeprefix(PINNED) for each in project["dependencies"] if each.startswith(PINNED))


def installed(settings: EngineSettings) -> str:
    """Return the version in the environment, read without running anything of it; empty if there is none."""
    packages = map(str, settings.folder.glob("lib/python*/site-packages"))
    return next((each.version for each in distributions(name="sglang", path=list(packages))), "")
