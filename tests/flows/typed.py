"""`nbrl` as it is typed, without the imports of every time: a process that has them forks for each command.

What is told of a command is what its own process did: streams, status, folder, environment. For signals, terminals, encodings and
what an interpreter does before our own code, start the program itself.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
EXTRAS = ("ray", "prefect", "torch", "mlflow", "transformers", "boto3", "s3fs", "pandas", "matplotlib", "safetensors")
# What `nbrl` looks like where it was installed without extras.
REFUSE = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError("no module named " + name + ": it is not installed without extras")
sys.meta_path.insert(0, Refuse())
"""
LATE = (
    "nbrl.agent.direct",
    *(f"nbrl.flows.ask.{name}" for name in ("endpoint", "equipment", "question", "replay")),
    *(f"nbrl.flows.display.{name}" for name in ("listing", "trajectory")),
    *("nbrl.tasks.comparison.overview", "nbrl.tasks.runs.plan", "nbrl.tasks.runs.preflight", "nbrl.tasks.runs.recipes"),
    "pandas",  # which pyarrow looks for
)
_SERVER = """
import aiohttp, bm25s, httpx, jinja2, json, mcp, nbformat, numpy, os, pyarrow.parquet, pydantic, rich.live, sys, tokenizers, yaml
import atexit, contextlib, importlib, threading, traceback
import nbrl.flows.cli.commands

for late in {LATE!r}:  # what commands import when they are called; without extras some of it is not there
    with contextlib.suppress(ImportError):
        importlib.import_module(late)

def run(asked):
    for number, (path, flags) in enumerate([(os.devnull, os.O_RDONLY), (asked["out"], os.O_WRONLY), (asked["err"], os.O_WRONLY)]):
        os.dup2(os.open(path, flags), number)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.argv = ["nbrl", *asked["arguments"]]
    from nbrl.flows.cli.main import main
    try:
        main()
    except SystemExit as end:
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0

replies = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        status = run(json.loads(line))
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=replies, flush=True)
"""


_servers: "dict[bool, subprocess.Popen[str]]" = {}


def _server(extras: bool) -> "subprocess.Popen[str]":
    if extras not in _servers:
        command = [sys.executable, "-c", ("" if extras else REFUSE) + _SERVER.replace("{LATE!r}", repr(LATE))]
        # The width is read with the imports.
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
        _servers[extras] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
        )
    return _servers[extras]


def nbrl(
    *arguments: str, folder: Path | str = ".", extras: bool = True, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """What comes of a command, in that folder and with these variables besides our own."""
    server = _server(extras)
    assert server.stdin
    assert server.stdout
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        asked = {
            "arguments": [os.fsdecode(part) for part in arguments],
            "folder": str(Path(folder).resolve()),
            "environment": os.environ | environment,
            "out": out.name,
            "err": err.name,
        }
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        said = [Path(file.name).read_text(encoding="utf-8", errors="surrogateescape") for file in (out, err)]
    return subprocess.CompletedProcess(list(arguments), status, *said)


def end() -> None:
    """End the processes that fork."""
    while _servers:
        _servers.popitem()[1].communicate()
