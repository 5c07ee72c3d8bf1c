"""What light commands import, for that is what they take: counted, since seconds depend on the machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.agent.trajectory import to_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from tests.agent.tool_server import Said, serving
from tests.flows.test_show import EVALUATED, trajectory
from tests.flows.typed import REPOSITORY
from tests.tasks.storing import stored

pytestmark = pytest.mark.process

TRAINING = {"ray", "prefect", "torch", "mlflow", "transformers", "sglang", "matplotlib", "scipy", "boto3", "aiohttp"}
TABLES = {"pandas", "numpy", "pyarrow"}
SERVERS = {"httpx", "tokenizers", "jupyter_client"}
COUNTED = """
import json, sys
from nbrl.flows.cli.main import main
status = 0
try:
    main()
except SystemExit as end:
    status = end.code or 0
with open(OUT, "w") as file:
    json.dump([status, sorted(sys.modules)], file)
"""


def imported(folder: Path, *arguments: str, **environment: str) -> set[str]:
    """Names of the modules that a command has imported when it ends."""
    out = folder / "modules.json"
    code = f"OUT, sys_argv = {str(out)!r}, {['nbrl', *arguments]!r}\nimport sys\nsys.argv = sys_argv\n{COUNTED}"
    variables = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "HOME": str(folder)} | environment
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, capture_output=True, text=True, check=False)
    status, modules = json.loads(out.read_text())
    assert status == 0, done.stderr
    return set(modules)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which a run has one trajectory."""
    storage = Storage(StorageSettings(root=str(tmp_path / ".nbrl/storage")))
    config = RunLayout("r").identity
    identity = {"name": "r", "run_id": "x", "config_digest": "", "seed": 0, "recipe": "tiny-cpu", "policy": "", "config": {}}
    storage.write_json(config, {"format": 2, "kind": "runs", "sources": {}} | identity)
    stored(storage, f"runs/r/{EVALUATED}/trajectories.index.parquet", to_table([trajectory()]))
    return tmp_path


@pytest.mark.parametrize(
    ("line", "never", "most"),
    [
        ("--help", {*TRAINING, *TABLES, *SERVERS}, 400),
        ("init questions", {*TRAINING, *TABLES, *SERVERS}, 400),
        ("runs", {*TRAINING, *TABLES, *SERVERS}, 550),
        ("show", {*TRAINING, *TABLES, *SERVERS}, 550),
        ("logs r", {*TRAINING, *TABLES, *SERVERS}, 500),
        ("show r", {*TRAINING, *SERVERS, "pandas", "nbformat"}, 700),
        ("show r/q-0", {*TRAINING, *SERVERS, "pandas", "nbformat"}, 700),
        ("train tiny-cpu --dry-run", TRAINING, 1500),
    ],
)
def test_a_light_command_imports_little(folder: Path, line: str, never: set[str], most: int) -> None:
    modules = imported(folder, *line.split())
    assert modules & never == set()
    assert len(modules) <= most


@pytest.mark.parametrize(
    ("words", "never", "most"), [("nbrl show ", TABLES, 400), ("nbrl train tiny-cpu --set upd", SERVERS, 750)]
)
def test_a_completion_imports_little(tmp_path: Path, words: str, never: set[str], most: int) -> None:
    place = str(len(words.split(" ")) - 1)
    modules = imported(tmp_path, _NBRL_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=place)
    assert modules & {*TRAINING, *never} == set()
    assert len(modules) <= most


def test_the_plan_of_an_evaluation_imports_no_training(tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text("question,answer\nWhich year?,1844\n")
    with serving(Said({"data": [{"id": "m"}]})) as server:
        modules = imported(tmp_path, "evaluate", "q.csv", "--endpoint", f"{server.url}/v1", "--dry-run")
    assert modules & (TRAINING - {"aiohttp"}) == set()
    assert len(modules) <= 1650
