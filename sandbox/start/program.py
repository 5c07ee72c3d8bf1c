"""Runs a program of nbrl in its own sandbox: for parsers of hostile files, so that an exploited parser finds nothing."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
from nbrl.sandbox.walls.filesystem import bubblewrap_arguments, find_bubblewrap, python_root
from nbrl.sandbox.walls.launcher import launch_arguments

_FOLDER = "/opt/nbrl"


def confined_program(file: Path, modules: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """Return the command line that runs the Python file at `file`, which imports only installed packages and `modules`.

    `modules` are host files and folders by their place relative to the folder in which it finds modules; it can only read them.

    It has its standard streams, and of this machine only what kernels have: no network, no host file, no other process, no
    root. Only this process can start it, with arguments to follow; it ends with this process. The caller bounds its
    time; it bounds its memory itself. Raises SandboxUnavailable without bubblewrap.
    """
    root, settings = python_root(interpreter.own()), SandboxSettings()
    before, after = bubblewrap_arguments(root, settings, nested=False)
    spec = {
        "parent": os.getpid(),
        "lifeline": None,
        "folder": None,
        "groups": [],
        "cpu": None,
        "binds": [
            *root.binds,
            (str(file), f"{_FOLDER}/{file.name}"),
            *((host, f"{_FOLDER}/{place}") for place, host in modules.items()),
        ],
        "before": [find_bubblewrap(), *before],
        "after": [*after, *root.python, "nbrl.sandbox.inside.program", file.stem],
        "keep": [],
        "uid": settings.unprivileged_uid if os.geteuid() == 0 else None,
    }
    return (*launch_arguments(), json.dumps(spec))
