"""Script: run pytest as an ordinary user; the checkout and Python are bound to where that user can reach them.

`as_user UID CHECKOUT HOME ARGUMENT…`, as root. Ends with pytest's status.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from nbrl.sandbox.walls.launcher import _stage


def main() -> None:
    uid, checkout, home = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sources = list(dict.fromkeys([checkout, sys.prefix, sys.base_prefix]))
    places = {source: place for place, source in _stage([[source, source] for source in sources])}
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    python = f"{places[sys.base_prefix]}/{Path(sys.executable).resolve().relative_to(Path(sys.base_prefix).resolve())}"
    environment = {
        "HOME": home,
        "TMPDIR": home,
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{places[checkout]}:{places[sys.prefix]}/{site}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LD_LIBRARY_PATH": f"{places[sys.base_prefix]}/lib",
    }
    os.chdir(places[checkout])
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # Short, since names of sockets below it have a limit.
    options = ["-p", "no:cacheprovider", "--basetemp", f"{home}/t"]
    os.execve(python, [python, "-m", "pytest", *options, *sys.argv[4:]], environment)


if __name__ == "__main__":
    main()
