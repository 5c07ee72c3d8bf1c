"""Bad input: one clear error before any work starts, exit code 1, nothing written."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.typed import nbrl

pytestmark = pytest.mark.process

NBRL = Path(sys.executable).with_name("nbrl")


def train(home: Path, *overrides: str, **environment: str) -> subprocess.CompletedProcess[str]:
    flags = [part for override in overrides for part in ("--set", override)]
    return nbrl("train", "tiny-cpu", "--home", f"{home}/home", *flags, **environment)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("rollout.promts=8", "did you mean 'prompts'"),
        ("policy.path=/nowhere/at/all", "does not exist"),
        ("rollout.group_size=1", "group_size"),
        ("engine.environment=/nowhere", "make setup"),
        ("update.lr=-1", "update.lr"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_error_and_leaves_nothing(tmp_path: Path, override: str, words: str) -> None:
    done = train(tmp_path, override)
    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("nbrl:") == 1
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = train(tmp_path, f"engine.port={port}")
    assert done.returncode == 1
    assert f"port {port} is taken" in done.stderr


def test_without_bubblewrap_it_says_what_to_install(tmp_path: Path) -> None:
    done = train(tmp_path, PATH="/nowhere")
    assert done.returncode == 1
    assert "bubblewrap" in done.stderr
    assert "install" in done.stderr


def test_an_unknown_recipe_names_the_nearest() -> None:
    done = nbrl("train", "tiny-cpi")
    assert done.returncode == 1
    assert "did you mean 'tiny-cpu'" in done.stderr


def test_a_dry_run_prints_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    done = nbrl("train", "tiny-cpu", "--dry-run", "--home", f"{tmp_path}/home")
    assert done.returncode == 0
    assert "64 prompts × 4" in done.stdout
    assert not list(tmp_path.rglob("*.parquet"))


def test_showing_an_unknown_run_says_which_there_are(tmp_path: Path) -> None:
    done = nbrl("show", "nothing", "--root", str(tmp_path))
    assert done.returncode == 1
    assert "there are: none yet" in done.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    heavy = ("torch", "ray", "prefect", "mlflow")
    code = f"import sys; import nbrl.flows.cli.commands; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    assert "evaluate" in nbrl("--help").stdout
