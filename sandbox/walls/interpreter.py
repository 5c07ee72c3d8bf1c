"""The Python that kernels have: nbrl's own, or that of an environment of their own."""

import functools
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions, version
from pathlib import Path

import nbrl
from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.settings import SandboxSettings

CHECKOUT = Path(nbrl.__file__).resolve().parents[1]
MADE = CHECKOUT / ".venv-kernels"  # by set-up
_LIMIT_S = 60.0
_NORMAL = re.compile(r"[-_.]+")  # a package's name may be written with any of these
_KERNEL = "ipykernel"  # on whose version the code inside depends
_DESCRIBE = (
    "import importlib.metadata as m, json, os, sys; print(json.dumps([os.path.realpath(sys._base_executable), "
    f"os.path.realpath(sys.base_prefix), sys.path, sys.implementation.cache_tag, m.version('{_KERNEL}')]))"
)
# No user's own packages: any user may have this HOME.
_PREPARE = "import IPython.core.debugger; from nbrl.sandbox.inside import fresh, zygote; zygote.ForkedKernel.prepare()"


@dataclass(frozen=True)
class Interpreter:
    """Real paths of a Python, of what it was installed to, and of its folders of packages; the tag of its compiled bytecode."""

    executable: Path
    base: Path
    sites: tuple[Path, ...]
    tag: str


def for_kernels(settings: SandboxSettings) -> Interpreter:
    """Return the Python of kernels. Raises SandboxUnavailable if the environment that they should have cannot run them."""
    if settings.environment is not None:
        return _of(CHECKOUT / settings.environment)
    return _of(MADE) if os.path.lexists(MADE) else own()


@functools.cache
def own() -> Interpreter:
    """Return nbrl's own Python."""
    return _interpreter(sys.executable, sys.base_prefix, sys.path, sys.implementation.cache_tag)


def versions(settings: SandboxSettings) -> dict[str, str]:
    """Return what kernels have by name: the minor version of Python, and where they have an environment of their own its
    packages.

    Those of nbrl's own differ with extras and GPUs. Raises SandboxUnavailable if there is no Python for them.
    """
    python = for_kernels(settings)
    minor = python.tag.removeprefix("cpython-3")
    if python == own():
        return {"Python": f"3.{minor}, nbrl's own"}
    path, found_versions = [str(site) for site in python.sites], {"Python": f"3.{minor}"}
    for name in sorted({_name(each) for each in distributions(path=path)} - {""}):
        for first in itertools.islice(distributions(name=name, path=path), 1):  # what an import would find
            found_versions[_NORMAL.sub("-", name).lower()] = first.version.partition("+")[
                0
            ]  # after it, of builds for CPUs and GPUs
    return found_versions


def _name(package: Distribution) -> str:
    """Return the name of a package; empty for the folders without one that installers leave behind.

    The standard library says None of them; importlib_metadata, which takes its place once anything has imported it, raises.
    """
    try:
        return package.name or ""
    except (FileNotFoundError, KeyError):
        return ""


@functools.cache
def _of(environment: Path) -> Interpreter:
    python = environment / "bin/python"
    try:
        described = subprocess.run(
            [python, "-I", "-c", _DESCRIBE],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        executable, base, folders, tag, found = json.loads(described.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        reason = error.stderr.strip().splitlines()[-1:] if isinstance(error, subprocess.CalledProcessError) else [str(error)]
        raise SandboxUnavailable(
            f"kernels cannot have the Python environment {environment}: {' '.join(reason)}; run `make setup`, or set "
            "sandbox.environment to one that has ipykernel"
        ) from error
    if found != (needed := version(_KERNEL)):
        raise SandboxUnavailable(
            f"the Python environment of kernels, {environment}, has ipykernel {found}, and nbrl is made for {needed}: "
            f"run `make setup`, or install ipykernel=={needed} there"
        )
    made = _interpreter(executable, base, folders, tag)
    if Path.home().resolve().is_relative_to(made.base) or made.base.name == ".local":
        raise SandboxUnavailable(
            f"the Python of {environment} is installed to {made.base}, all of which kernels would see, users' files among it: "
            "make the environment with a Python that has a folder of its own"
        )
    return made


def _interpreter(executable: str, base: str, folders: list[str], tag: str) -> Interpreter:
    paths = dict.fromkeys(Path(folder).resolve() for folder in folders)
    sites = tuple(each for each in paths if each.name in ("site-packages", "dist-packages") and each.is_dir())
    return Interpreter(Path(executable).resolve(), Path(base).resolve(), sites, tag)


@functools.cache
def compile_once(python: Interpreter) -> None:
    """Write compiled bytecode to places that kernels can only read; without it each kernel compiles a thousand modules."""
    sources = [site / "IPython/core/debugger.py" for site in python.sites]
    compiled = [source.parent / "__pycache__" / f"{source.stem}.{python.tag}.pyc" for source in sources if source.exists()]
    if all(each.exists() for each in compiled):
        return
    # Where the installation cannot be written this does no harm and no good.
    environment = {"PYTHONPATH": ":".join(map(str, (*python.sites, CHECKOUT))), "HOME": tempfile.gettempdir()}
    line = [str(python.executable), "-s", "-P", "-c", _PREPARE]
    subprocess.run(line, env=environment, capture_output=True, timeout=120, check=False)
