"""What the shell gets at a key press."""

from pathlib import Path

import click
import pytest
import typer

from nbrl.flows.cli import completion
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import dotted
from nbrl.tasks.runs.recipes import load
from tests.flows.typed import nbrl

pytestmark = pytest.mark.process


@pytest.fixture
def root(tmp_path: Path) -> str:
    storage = Storage(StorageSettings(root=str(tmp_path / "home/storage")))
    for run in ("alpha", "beta"):
        storage.write_bytes(f"runs/{run}/run.json", b"{}")
    storage.write_bytes("evaluations/all/data/held_out.parquet", b"")
    return storage.settings.root


def offered(typed: str, folder: str = ".") -> list[str]:
    """Completions of the last word of `nbrl TYPED`."""
    words = f"nbrl {typed}"
    asked = {"_NBRL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = nbrl(folder=folder, **asked)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("show --root {root} ", ["all", "alpha", "beta"]),
        ("show --root {root} al", ["all", "alpha"]),
        ("compare --root {root} all b", ["beta"]),
        ("export --root {root} ", ["alpha", "beta"]),
        ("train tiny-cpu --set storage.root={root} --run a", ["alpha"]),
        ("evaluate tiny-cpu --set storage.root={root} --model ", ["alpha", "beta"]),
        ("show --home {home} al", ["all", "alpha"]),
        ("train tiny-cpu --home {home} --run a", ["alpha"]),
        ("train tiny-cpu --set home={home} --run a", ["alpha"]),
        ("train tiny", ["tiny-cpu"]),
    ],
)
def test_names_are_offered(root: str, typed: str, names: list[str]) -> None:
    assert offered(typed.format(root=root, home=root.removesuffix("/storage"))) == names


STRANGE = ["$(touch made)", "`id`", "-rf", "a b", "a;b", "a\nb", "a\x1b[31m", "a'b", "~", "a*", "a|b", "a&b", "ä"]


@pytest.mark.attack(
    tried="A run or an evaluation named as a command, to be run at the next key press",
    wall="only words that mean nothing to a shell are offered",
    effect="it is not offered",
)
def test_no_name_that_means_something_to_a_shell_is_offered(root: str) -> None:
    storage = Storage(StorageSettings(root=root))
    for name in STRANGE:
        storage.write_bytes(f"runs/{name}/run.json", b"{}")
        storage.write_bytes(f"evaluations/{name}/data/held_out.parquet", b"")
    context = typer.Context(click.Command("show"))
    context.params = {"root": root}
    assert completion.runs(context, "") == ["alpha", "beta"]
    assert completion.runs_and_evaluations(context, "") == ["all", "alpha", "beta"]


def test_the_usual_storage_is_looked_in(root: str, tmp_path: Path) -> None:
    (tmp_path / ".nbrl").mkdir()
    (tmp_path / ".nbrl/storage").symlink_to(root)
    assert offered("evaluate tiny-cpu --model b", str(tmp_path)) == ["beta"]
    assert offered("show b", str(tmp_path)) == ["beta"]


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("train tiny-cpu --set update.lr", ["update.lr=", "update.lr_schedule=", "update.lr_decay_steps=", "update.lr_floor="]),
        ("evaluate tiny-cpu --set seed=1 --set see", ["seed="]),
        ("train tiny-cpu --set update.critic.l", ["update.critic.lr="]),
        ("train tiny-cpu --set nothing", []),
        ("warmstart out --set update.warm", ["update.warmup="]),
        ("prepare r.yaml --out o --set rate.max_", ["rate.max_tokens=", "rate.max_unrated="]),
    ],
)
def test_keys_of_settings_are_offered(typed: str, keys: list[str]) -> None:
    assert offered(typed) == keys


def test_keys_of_alternatives_stand_once_and_names_of_the_users_own_are_left_to_him() -> None:
    keys = dotted(RunConfig)
    assert len(keys) == len(set(keys)) > 150
    assert {"environments", "update.loss.dual_clip", "rollout.tools.mcp", "engine.count"} <= set(keys)
    assert not [key for key in keys if key.startswith("rollout.tools.mcp.")]


def test_a_key_that_is_offered_is_one_that_recipes_have() -> None:
    for override in ("update.lr=1e-3", "rollout.tools.search.top_k=2", "engine.count=1"):
        assert override.partition("=")[0] in dotted(RunConfig)
        load("tiny-cpu", [override])
