"""Asks SGLang whether it takes a command line, without starting it."""

import subprocess
from pathlib import Path

from infra.engine.settings import EngineSettings, command

LIMIT_S = 120.0
SCRIPT = """
import argparse, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(prog="sglang", allow_abbrev=False)
ServerArgs.add_cli_args(parser)
parser.parse_args(sys.argv[1:])
"""


def refusal(settings: EngineSettings) -> str:
    """What SGLang says against the engine's command line with `extra_args`; empty when it takes it. It takes ten seconds."""
    line = command(settings, Path("model"), port=0, seed=0)
    flags = line[next(place for place, word in enumerate(line) if word.startswith("--")) :]
    done = subprocess.run(
        [settings.python, "-I", "-c", SCRIPT, *flags],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    lines = [text for text in done.stderr.splitlines() if text.strip()]
    return lines[-1].removeprefix("sglang: error: ") if done.returncode and lines else ""
