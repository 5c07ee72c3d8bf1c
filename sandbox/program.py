"""A program of ours in a sandbox of its own: for parsers of hostile files, which should find nothing if they are led astray."""

from pathlib import Path

from sandbox.root import bubblewrap_arguments, find_bubblewrap, python_root
from sandbox.settings import SandboxSettings

_FOLDER = "/opt/nbrl"


def confined_program(file: Path) -> tuple[str, ...]:
    """The command line that runs the Python file at `file`, which imports nothing beside installed packages.

    It has its standard streams, and of this machine only what kernels have: no network, no host file, no other process.
    Whoever starts it bounds its time; it bounds its memory itself. Raises SandboxUnavailable without bubblewrap.
    """
    root = python_root()
    before, after = bubblewrap_arguments(root, SandboxSettings(), nested=False)
    binds = [part for source, target in root.binds for part in ("--ro-bind", source, target)]
    binds += ["--ro-bind", str(file), f"{_FOLDER}/{file.name}"]
    return (find_bubblewrap(), *before, *binds, *after, *root.python, file.stem)
