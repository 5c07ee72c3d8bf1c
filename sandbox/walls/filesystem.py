"""The file system of the sandbox: what a kernel sees of this machine, and bubblewrap's arguments for it.

Only Python is visible, read-only and at neutral places: the interpreter under /opt/python (or where it lies below /usr), each
site-packages folder under /opt/site, the code that runs inside under /opt/nbrl. Everything writable is a tmpfs of limited size.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.inside.confine import HIDDEN
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.interpreter import Interpreter, compile_once

_INSIDE = "/opt/nbrl"
_PYTHON = "/opt/python"
WORKSPACE = "/workspace"
PROGRAM = "/opt/program"

# The loader's cache and time zone are the only host configuration Python's libraries want, and Debian's links to awk and others
# lead through alternatives; none says who or where we are.
_OPTIONAL_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")


@dataclass(frozen=True)
class Root:
    """Bind mounts (host path, path inside), the environment and the start of the command line inside."""

    binds: tuple[tuple[str, str], ...]
    environment: dict[str, str]
    python: tuple[str, ...]


def find_bubblewrap() -> str:
    """Return the path of bwrap. Raises SandboxUnavailable, which says how to install it."""
    path = shutil.which("bwrap")
    if path is None:
        raise SandboxUnavailable("bubblewrap (bwrap) is not on PATH: install the package `bubblewrap`")
    return path


def python_root(interpreter: Interpreter) -> Root:
    """Return the root for an interpreter and its installed packages, wherever they lie on this machine."""
    compile_once(interpreter)
    base, executable = interpreter.base, interpreter.executable
    binds: list[tuple[str, str]] = [("/usr", "/usr")]
    environment = {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": WORKSPACE,
        "TMPDIR": "/tmp",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "IPYTHONDIR": "/tmp/.ipython",
        "MPLCONFIGDIR": "/tmp/.matplotlib",
        "PYTHONDONTWRITEBYTECODE": "1",
        # pip would try again for many seconds; it names the index where it finds nothing.
        "PIP_INDEX_URL": "file:///there-is-no-network-here",
        "PIP_RETRIES": "0",
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        # One thread per numeric library: a kernel has to fork while single-threaded, and hundreds share the machine.
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
        # Few threads allocate at once here, and a second arena costs each kernel hundreds of page faults.
        "MALLOC_ARENA_MAX": "1",
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        # Arrow's other allocator would start a thread as pandas is imported.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
    }
    if base.is_relative_to("/usr"):
        python = str(executable)
    else:
        binds.append((str(base), _PYTHON))
        python = f"{_PYTHON}/{executable.relative_to(base)}"
        environment["LD_LIBRARY_PATH"] = f"{_PYTHON}/lib"
        environment["PATH"] = f"{_PYTHON}/bin:" + environment["PATH"]
    sites: list[str] = []
    for folder in interpreter.sites:
        if folder.is_relative_to("/usr"):
            sites.append(str(folder))
        elif folder.is_relative_to(base):
            sites.append(f"{_PYTHON}/{folder.relative_to(base)}")
        else:
            sites.append(f"/opt/site/{len(sites)}")
            binds.append((str(folder), sites[-1]))
    # For interpreters that cells start; the kernel's own gets its paths on its command line.
    environment["PYTHONPATH"] = ":".join(sites)
    package = Path(__file__).resolve().parents[1]
    binds.append((str(package / "inside"), f"{_INSIDE}/nbrl/sandbox/inside"))
    binds.append((str(package / "inside/etc/passwd"), "/etc/passwd"))
    binds.append((str(package / "inside/etc/group"), "/etc/group"))
    binds.append((str(package / "inside/etc/fonts.conf"), "/etc/fonts/fonts.conf"))
    binds.extend((path, path) for path in _OPTIONAL_FILES if Path(path).exists())
    # Without `site`, which would put the base interpreter's packages first; what else it does is done here. The working folder
    # comes after the standard library, as in every notebook: a file of the cells' own breaks no module of Python. The flags are
    # this interpreter's alone: workers that multiprocessing and joblib start need their packages.
    start = (
        f"import sys; sys.path += {['', *sites, _INSIDE]!r}; import site; site.setquit(); site.setcopyright(); site.sethelper(); "
        "import subprocess; subprocess._args_from_interpreter_flags = list; "
        "from runpy import run_module; run_module(sys.argv.pop(1), run_name='__main__')"
    )
    return Root(tuple(binds), environment, (python, "-I", "-S", "-c", start))


def bubblewrap_arguments(root: Root, settings: SandboxSettings, *, nested: bool) -> tuple[list[str], list[str]]:
    """Return the arguments before and after the bind mounts (which the launcher inserts, since it may stage them).

    `nested` lets what runs inside make sandboxes of its own: for the zygote, which runs no untrusted code.
    """
    size = str(settings.workspace_mb * 1024 * 1024)
    before = ["--unshare-user", "--unshare-all", "--new-session", "--die-with-parent", "--as-pid-1"]
    before += [] if nested else ["--disable-userns"]
    before += ["--cap-drop", "ALL", "--hostname", "sandbox", "--uid", "1000", "--gid", "1000", "--clearenv"]
    for name, value in root.environment.items():
        before += ["--setenv", name, value]
    after = []
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            after += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            after += ["--ro-bind", str(path), str(path)]
    after += ["--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
    if not nested:
        # A zygote's children mount a /proc of their own, which the system allows only where none of the outer one is hidden.
        for name in HIDDEN:
            if Path("/proc", name).exists():
                after += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for folder, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), (WORKSPACE, "0700")):
        after += ["--size", size, "--perms", mode, "--tmpfs", folder]
    return before, [*after, "--remount-ro", "/", "--chdir", WORKSPACE, "--"]
