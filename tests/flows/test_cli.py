"""The command line itself: version and help, names, streams, folders and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path

import pytest

from nbrl.agent.trajectory import to_table
from nbrl.flows.cli.commands import app
from nbrl.flows.cli.export import closing
from nbrl.flows.cli.stored import home_flag, root_flag
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load
from tests.flows.test_cli_errors import NBRL
from tests.flows.test_show import trajectory
from tests.flows.typed import nbrl
from tests.processes import heed_interrupts
from tests.tasks.storing import stored as store

pytestmark = pytest.mark.process


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A storage with a run of one trajectory, whose text is more than ASCII."""
    storage = Storage(StorageSettings(root=str(tmp_path / "storage")))
    storage.write_bytes("runs/r/run.json", b"{}")
    shown = trajectory().model_copy(update={"question": "Где? 何処"})
    store(storage, "runs/r/iterations/000000/round-0/trajectories.index.parquet", to_table([shown] * 100))
    return storage.settings.root


def test_the_version_is_printed() -> None:
    done = nbrl("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "nbrl")
    assert done.stdout.split()[1][0].isdecimal()


@pytest.mark.parametrize("command", [[], ["train"], ["evaluate"], ["export"], ["show"], ["agent"], ["doctor"], ["ui"]])
def test_h_is_help(command: list[str]) -> None:
    done = nbrl(*command, "-h")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: nbrl ")


@pytest.mark.parametrize(
    "typed",
    [
        ["show", ""],
        ["show", "/q-0"],
        ["show", "r", "--root", ""],
        ["show", "r", "--home", ""],
        ["train", "tiny-cpu", "--home", " "],
        ["export", "", "out"],
        ["export", "r", "out", "--root", ""],
        ["train", "tiny-cpu", "--run", ""],
        ["evaluate", "tiny-cpu", "--model", ""],
        ["evaluate", "tiny-cpu", "--name", ""],
        ["ui", "--home", ""],
        ["warmstart", "out", "--home", ""],
    ],
)
def test_an_empty_name_is_refused_in_a_sentence(tmp_path: Path, typed: list[str]) -> None:
    done = nbrl(*typed, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "named ''" in done.stderr or "is empty" in done.stderr
    assert done.stderr.count("nbrl: ") == 1
    assert not list(tmp_path.iterdir())


def test_every_command_with_a_storage_takes_a_home() -> None:
    commands = {
        each.name or each.callback.__name__: signature(each.callback).parameters
        for each in app.registered_commands
        if each.callback
    }
    assert [name for name, options in commands.items() if "root" in options and "home" not in options] == []
    assert [name for name, options in commands.items() if "home" not in options] == ["init"]


def test_a_home_has_the_storage(root: str, tmp_path: Path) -> None:
    done = nbrl("show", "r", "--home", str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "q-0" in done.stdout
    done = nbrl("show", "r", "--home", str(tmp_path), "--root", root)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "nbrl: --home changes nothing beside --root, which names the storage; leave one of them out\n"


@pytest.mark.parametrize(
    ("storage", "show", "ui"),
    [
        ({}, "", ""),
        ({"home": "/a b"}, " --home '/a b'", " --home '/a b'"),
        ({"storage": {"root": "s3://b/p"}}, " --root s3://b/p", " --root s3://b/p"),
        ({"home": "/a", "storage": {"root": "/b"}}, " --root /b", " --home /a --root /b"),
        ({"home": "/a", "storage": {"root": ".nbrl/storage"}}, "", " --home /a --root .nbrl/storage"),
    ],
)
def test_the_next_commands_find_the_run(storage: dict[str, object], show: str, ui: str) -> None:
    settings = load("tiny-cpu").model_dump(exclude={"storage", "home"})
    config = RunConfig.model_validate(settings | storage)
    assert (root_flag(config), home_flag(config)) == (show, ui)


@pytest.mark.parametrize("given", [",", "", " , "])
def test_an_empty_list_of_environments_is_refused_and_not_taken_for_all(tmp_path: Path, given: str) -> None:
    done = nbrl("evaluate", "tiny-cpu", "--environments", given, folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"nbrl: --environments {given!r} names no environment; name one, or leave it out for all\n"


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONIOENCODING": "ascii"},
        pytest.param({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, marks=pytest.mark.more),
    ],
)
@pytest.mark.parametrize("what", [pytest.param("r", marks=pytest.mark.more), "r/q-0"])
def test_what_an_encoding_lacks_is_replaced(root: str, variables: dict[str, str], what: str) -> None:
    plain = {name: value for name, value in os.environ.items() if name not in ("LANG", "LC_ALL", "PYTHONUTF8")}
    line = [NBRL, "show", what, "--root", root]
    done = subprocess.run(line, capture_output=True, timeout=120, env=plain | variables, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"???" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.more
def test_a_reader_that_goes_away_is_no_error(root: str) -> None:
    process = subprocess.Popen([NBRL, "show", "r/q-0", "--root", root], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    process.stdout.close()
    _, said = process.communicate(timeout=120)
    assert said == b""


@pytest.mark.parametrize(
    "command", [["show"], ["ui"], ["doctor"], ["train", "tiny-cpu"], ["agent", "q", "--endpoint", "http://x"]]
)
def test_a_folder_that_is_gone_is_one_sentence(tmp_path: Path, command: list[str]) -> None:
    folder = tmp_path / "gone"
    line = f"mkdir {folder} && cd {folder} && rmdir {folder} && exec {NBRL} {' '.join(command)}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "nbrl: the current folder does not exist any more; change to one that does and try again\n"


INTERRUPTED = """
import builtins, os, signal, sys
from nbrl.flows.cli.main import main
imported = builtins.__import__
def interrupted(name, *rest):
    if name == {module!r}:
        builtins.__import__ = imported
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest)
builtins.__import__ = interrupted
sys.argv = ["nbrl", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("module", ["nbrl.flows.cli.commands", "typer", "rich.console", "nbrl.tasks.runs.preflight", "pyarrow"])
def test_ctrl_c_during_the_imports_ends_quietly(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(module=module), "train", "tiny-cpu", "--dry-run"],
        capture_output=True,
        text=True,
        timeout=120,
        preexec_fn=heed_interrupts,
        check=False,
    )
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr in ("", "nbrl: stopped\n")


def interrupted(ready: Path, *arguments: str) -> tuple[int, str]:
    """The end of a command that got Ctrl-C once `ready` was there."""
    process = subprocess.Popen(
        [NBRL, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    ends = time.monotonic() + 120
    while not ready.exists() and process.poll() is None and time.monotonic() < ends:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    return process.returncode, said


@pytest.mark.more
def test_ctrl_c_of_what_cannot_continue_says_so_much_and_no_more(tmp_path: Path) -> None:
    assert interrupted(tmp_path / "prefect", "ui", "--home", str(tmp_path)) == (130, "nbrl: stopped\n")


def test_ctrl_c_of_training_before_there_is_a_run_says_so_much_and_no_more(tmp_path: Path) -> None:
    code, said = interrupted(
        tmp_path / "prefect",
        "train",
        "tiny-cpu",
        "--set",
        f"home={tmp_path}",
        "--set",
        f"storage.root={tmp_path}/storage",
        "--set",
        "iterations=1",
    )
    assert (code, said.splitlines()[-1]) == (130, "nbrl: stopped")
    assert not [*tmp_path.glob("storage/runs/*")]


def test_an_export_says_what_was_written_and_what_to_type_next() -> None:
    whole = closing(Path("my model"), "root/runs/a/checkpoints/000003", adapter=False)
    assert whole.splitlines()[0] == "wrote the policy of root/runs/a/checkpoints/000003 to my model"
    for words in ('from_pretrained("my model")', "--set policy.path='my model'", "--model-path 'my model'"):
        assert words in whole
    adapter = closing(Path("out"), "root/runs/a/checkpoints/000003", adapter=True)
    assert 'peft.PeftModel.from_pretrained(model, "out")' in adapter
    assert "policy.path" not in adapter
