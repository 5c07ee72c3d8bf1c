"""Modules of a user's own, found where they were named and nothing else there."""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from nbrl.infra import own_code
from nbrl.infra.own_code import VARIABLE, look, where_looked
from nbrl.infra.storage import Storage
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load, resumed_config


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is found by another test."""
    monkeypatch.setenv(VARIABLE, "{}")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])


def module(folder: Path, name: str, value: int = 1) -> str:
    """A module in a folder, and its name, which no other test's module has."""
    name = f"{name}_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(f"VALUE = {value}\n")
    return name


def test_a_named_module_is_found_and_its_neighbour_is_not(tmp_path: Path) -> None:
    mine, other = module(tmp_path, "mine"), module(tmp_path, "other")
    assert where_looked(f"{mine}:VALUE") == f"; {mine} was looked for on PYTHONPATH"
    look(f"{mine}:VALUE", tmp_path)
    assert (importlib.import_module(mine).VALUE, find_spec(other), where_looked(f"{mine}:VALUE")) == (1, None, "")
    look("gone.deep:f", tmp_path)
    assert where_looked("gone.deep:f") == f"; gone was looked for beside the recipe, in {tmp_path}, and on PYTHONPATH"


def test_what_is_on_the_path_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError\n")
    (tmp_path / "path").mkdir()
    name = module(tmp_path, "mine")
    (tmp_path / "path" / f"{name}.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    look(f"{name}:VALUE", tmp_path)
    assert importlib.import_module(name).VALUE == 2


def test_a_recipes_module_is_beside_it_and_that_of_an_option_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("recipes", "here"):
        (tmp_path / name).mkdir()
    beside, here = module(tmp_path / "recipes", "beside"), module(tmp_path / "here", "here")
    recipe = tmp_path / "recipes" / "mine.yaml"
    recipe.write_text(f"base: tiny-cpu\nrollout: {{tools: {{own: {{one: '{beside}:f'}}}}}}\n")
    monkeypatch.chdir(tmp_path / "here")
    load(str(recipe), [f"rollout.tools.own.two={here}:f"])
    assert (find_spec(beside), find_spec(here)) != (None, None)
    assert {*own_code._folders().values()} == {str(tmp_path / "recipes"), str(tmp_path / "here")}


def test_the_code_that_a_storage_names_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = module(tmp_path, "mine")
    monkeypatch.chdir(tmp_path)
    config = load("tiny-cpu", [f"rollout.tools.own.one={name}:f", f"storage.root={tmp_path}/storage"])
    open_run(config, "r", storage := Storage(config.storage))
    os.environ[VARIABLE] = "{}"
    assert resumed_config(storage, "r", []).rollout.tools.own == {"one": f"{name}:f"}
    assert find_spec(name) is None
