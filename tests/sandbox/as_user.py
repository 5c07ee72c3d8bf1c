"""Script: run pytest as an ordinary user; the checkout and Python are bound to where that user can reach them.

`as_user UID CHECKOUT HOME ARGUMENT…`, as root. Ends with pytest's status.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.interpreter import MADE, for_kernels, own
from nbrl.sandbox.walls.launcher import _MS_BIND, _mount, _stage


def main() -> None:
    uid, checkout, home = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    kernels = for_kernels(SandboxSettings())
    made = [str(MADE), str(kernels.base)] if kernels != own() else []
    sources = list(dict.fromkeys([checkout, sys.prefix, sys.base_prefix, *made]))
    places = {source: place for place, source in _stage([[source, source] for source in sources])}
    if made:
        reachable = Path(places[str(kernels.base)], kernels.executable.relative_to(kernels.base))
        _put_over(Path(places[checkout], MADE.name), Path(home, "kernels"), Path(places[str(MADE)]), reachable)
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    python = f"{places[sys.base_prefix]}/{Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())}"
    environment = {
        "HOME": home,
        "TMPDIR": home,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{places[checkout]}:{places[sys.prefix]}/{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": ":".join(f"{places[base]}/lib" for base in (sys.base_prefix, str(kernels.base)) if base in places),
    }
    os.chdir(places[checkout])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Short, since names of sockets below it have a limit.
    options = ["-p", "no:cacheprovider", "--basetemp", f"{home}/t"]
    os.execve(python, [python, "-m", "pytest", *options, *sys.argv[4:]], environment)


def _put_over(place: Path, copy: Path, environment: Path, python: Path) -> None:
    """Have at `place` the packages of the environment with a Python that the user can reach."""
    (copy / "bin").mkdir(parents=True)
    (copy / "bin/python").symlink_to(python)
    (copy / "lib").symlink_to(environment / "lib")
    (copy / "pyvenv.cfg").write_text(f"home = {python.parent}\n")
    _mount(str(copy), str(place), "none", _MS_BIND)


if __name__ == "__main__":
    main()
