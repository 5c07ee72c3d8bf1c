"""Recipes that build on one another, paths, and which file or override an error blames."""

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config_check import check_config
from nbrl.tasks.runs.recipe_tree import RecipeTree
from nbrl.tasks.runs.recipes import FOLDER, load

TINY = (FOLDER / "../policies/tiny").resolve()


def write(path: Path, **settings: object) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def refusal(recipe: str, *overrides: str) -> str:
    with pytest.raises((ConfigError, StorageError)) as error:
        check_config(load(recipe, overrides))
    return str(error.value)


def test_three_lines_on_a_base_suffice(tmp_path: Path) -> None:
    recipe = write(tmp_path / "mine.yaml", base="tiny-cpu", iterations=3, update={"lr": 0.001})
    mine, base = load(recipe), load("tiny-cpu")
    assert (mine.name, mine.iterations, mine.update.lr) == ("mine", 3, 0.001)
    assert mine.policy.path == str(TINY)  # meant from the base's own folder
    kept = {"name", "iterations", "update"}
    assert mine.model_dump(exclude=kept) == base.model_dump(exclude=kept)
    assert mine.update.model_dump(exclude={"lr"}) == base.update.model_dump(exclude={"lr"})
    check_config(mine)


def test_a_base_may_be_a_file_beside_the_recipe_and_have_a_base_itself(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", base="tiny-cpu", seed=1, iterations=1)
    write(tmp_path / "b.yaml", base="a.yaml", iterations=2)
    config = load(write(tmp_path / "c.yaml", base="./b.yaml", rollout={"prompts": 4}))
    assert (config.seed, config.iterations, config.rollout.prompts, config.rollout.group_size) == (1, 2, 4, 4)


def test_a_section_of_another_kind_replaces_that_of_the_base(tmp_path: Path) -> None:
    recipe = write(
        tmp_path / "mine.yaml",
        base="tiny-cpu",
        environments={"world": {"kind": "files", "train": "a.parquet", "held_out": "b.parquet"}},
    )
    assert load(recipe).environments["world"].model_dump(include={"train", "held_out"}) == {
        "train": tmp_path / "a.parquet",
        "held_out": tmp_path / "b.parquet",
    }


@pytest.mark.attack(
    tried="A recipe, or the base of one, that is a pipe or has gigabytes",
    wall="settings are read of files of a bounded size alone",
    effect="one sentence",
)
def test_a_recipe_is_a_file_of_some_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with open(tmp_path / "large.yaml", "wb") as file:
        file.truncate(1 << 40)
    for name, reason in (("pipe", r"there is no recipe"), ("large", "has more than 128 MB")):
        for recipe in (tmp_path / f"{name}.yaml", write(tmp_path / f"on-{name}.yaml", base=f"{name}.yaml")):
            with pytest.raises(ConfigError, match=reason):
                load(str(recipe))


@pytest.mark.attack(
    tried="A recipe of twenty thousand environments, over a base of as many",
    wall="where a key comes from is found without a look at all others",
    effect="read like any other",
)
def test_the_work_grows_with_the_keys_and_not_with_their_square() -> None:
    def calls(count: int) -> int:
        names = [f"e{number}" for number in range(count)]
        below, above = [{"environments": {name: {"kind": kind, "train": 1} for name in names}} for kind in "ab"]
        tree, events = RecipeTree([]), list[str]()
        sys.setprofile(lambda frame, event, argument: events.append(event))
        try:
            for settings in (below, above):
                tree._lay(tree.settings, settings, "source", "")
        finally:
            sys.setprofile(None)
        return len(events)

    assert calls(400) < 2.5 * calls(200)


def test_recipes_that_are_their_own_base_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", base="b.yaml")
    assert "is its own base" in refusal(write(tmp_path / "b.yaml", base="a.yaml"))
    assert "no recipe 'tiny-cpus'" in refusal(write(tmp_path / "c.yaml", base="tiny-cpus"))
    assert "must be a recipe's name or path" in refusal(write(tmp_path / "d.yaml", base=["tiny-cpu"]))


def test_paths_are_meant_from_the_recipes_folder_and_those_of_overrides_from_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(TINY, tmp_path / "recipes/model")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    data = {"kind": "files", "train": "train.parquet", "held_out": "../held.parquet"}
    places = {"home": "home", "storage": {"root": "store"}, "engine": {"environment": "engine"}}
    for path in ("model", "./model", "../recipes/model"):
        recipe = write(
            tmp_path / "recipes/mine.yaml", base="tiny-cpu", policy={"path": path}, environments={"mine": data}, **places
        )
        config = load(recipe)
        assert config.policy.path == str(tmp_path / "recipes/model")
    assert config.environments["mine"].train == tmp_path / "recipes/train.parquet"
    assert (config.home, config.storage.root) == (f"{tmp_path}/recipes/home", f"{tmp_path}/recipes/store")
    assert config.engine.folder == tmp_path / "recipes/engine"
    config = load(
        recipe, ["environments.mine.train=x.parquet", "home=./h", "storage.root=s3://bucket/x", "policy.path=../recipes/model"]
    )
    assert (config.environments["mine"].train, config.home) == (here / "x.parquet", f"{here}/h")
    assert (config.storage.root, config.policy.path) == ("s3://bucket/x", str(tmp_path / "recipes/model"))
    whole = load(recipe, ["environments={other: {kind: files, train: x.parquet, held_out: y.parquet}}"])
    assert list(whole.environments) == ["other"]
    assert whole.environments["other"].held_out == here / "y.parquet"
    assert load("tiny-cpu").home == ".nbrl"  # the default is of the current folder
    assert load("tiny-cpu", ["policy.path=owner/name"]).policy.path == "owner/name"
    assert f"{here}/x.parquet does not exist" in refusal(recipe, "environments.mine.train=x.parquet", "rollout.prompts=1")


def test_an_error_blames_the_override_or_the_file_that_set_the_value(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", base="tiny-cpu", rollout={"prompts": "many"})
    mine = write(tmp_path / "mine.yaml", base="base.yaml", update={"lr": -1})
    said = refusal(mine, "seed=x")
    assert f"rollout.prompts in {base}:" in said
    assert f"update.lr in {mine}:" in said
    assert "--set seed=x:" in said
    assert "unknown key 'rollout.promts' in --set rollout.promts=8; did you mean 'prompts'?" in refusal(
        mine, "rollout.promts=8", "rollout.prompts=8", "update.lr=1"
    )
    assert str(FOLDER) not in refusal("tiny-cpu", "update.lr=-1")
    assert "rollout.tools: nothing has the tool search" in refusal("tiny-cpu", "rollout.tools.search.engine=serper")


def test_an_error_of_a_section_blames_the_recipe_nearest_to_the_user(tmp_path: Path) -> None:
    recipe = write(tmp_path / "mine.yaml", base="tiny-cpu", agent={"system_prompt": "xxx {foo}"})
    assert refusal(recipe).startswith(f"agent in {recipe}: system_prompt may use")
    whole = write(tmp_path / "whole.yaml", base="tiny-cpu", environments={"e": {"kind": "files", "held_out": "b", "corpse": "c"}})
    assert f"unknown key 'environments.e.corpse' in {whole}" in refusal(whole)


def test_a_recipe_that_is_not_there_is_named_with_its_place(tmp_path: Path) -> None:
    said = refusal(write(tmp_path / "mine.yaml", base="sub/nope.yaml"))
    assert f"no file {tmp_path}/sub/nope.yaml" in said
    assert "names as its base" in said
    assert f"no file {tmp_path}/nope.yaml" in refusal(f"{tmp_path}/nope.yaml")


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("base: tiny-cpu\nupdate: {lr: 1, lr: 2}\n")
    assert "line 2, column 17: 'lr' is there twice" in refusal(str(path))
    assert "'lr' is there twice" in refusal("tiny-cpu", "update={lr: 1, lr: 2}")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("base=qwen3-0.6b", "a base belongs in a recipe's file"),
        ("environments={a: {seed: 3}}", "kind is missing"),
        ("environments.world.kind=fils", "kind must be one of 'world', 'files', 'reasoning_gym', 'own', 'hub'"),
        ("name=2024-13-45", "--set 'name=2024-13-45': the value is not YAML: month must be in 1..12"),
        ("x={[1,2]: 3}", "the value is not YAML: "),
        ("home=~nosuch/x", "~nosuch/x names the home of a user who is not known here; write the path out"),
        ("storage.root=~nosuch/x", "~nosuch/x names the home of a user"),
        ("update=3", "this is a section of settings, not a value"),
        ("update.critic=true", "this is a section of settings, not a value"),
    ],
)
def test_what_is_wrong_is_said_without_words_of_the_library(override: str, words: str) -> None:
    said = refusal("tiny-cpu", override)
    assert words in said
    assert not [word for word in ("discriminator", "instance of", "tag ") if word in said]


def test_a_value_that_fails_with_its_section_is_not_dumped() -> None:
    said = refusal("tiny-cpu", "agent.system_prompt={nonsense}")
    assert "max_steps" not in said
    assert "system_prompt" in said
    assert len(said.splitlines()) == 1


def test_keys_that_lack_are_one_sentence_in_any_order_of_overrides(tmp_path: Path) -> None:
    kind = "environments.world.kind=files"
    said = "--set environments.world.kind=files needs environments.world.held_out; set it."
    assert refusal("tiny-cpu", kind) == said
    assert "environments.world.held_out; set it." in refusal("tiny-cpu", "environments.world.train=x", kind)
    assert "iterations and policy and environments; set them." in refusal(write(tmp_path / "empty.yaml", seed=1))


def test_a_recipe_leaves_out_environments_of_its_base_that_it_does_not_name(tmp_path: Path) -> None:
    own = {"kind": "files", "train": "t", "held_out": "h"}
    base = write(tmp_path / "base.yaml", base="tiny-cpu", environments={"world": {"train": 7}, "mine": own})
    assert list(load(base).environments) == ["world", "mine"]
    assert load(base).environments["world"].model_dump(include={"train", "held_out"}) == {"train": 7, "held_out": 256}
    recipe = write(tmp_path / "mine.yaml", base="base.yaml", environments={"mine": {"weight": 2}})
    assert load(recipe).weights == {"mine": 2.0}
    assert load(base, ["environments.world=null"]).weights == {"mine": 1.0}
    assert "no environment is left" in refusal("tiny-cpu", "environments.world=null")


def test_what_is_not_yaml_is_told_in_a_line_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text("seed: 1\nupdate: {lr: 1\nrollout: 2\n")
    said = refusal(str(path))
    assert said.startswith(f"recipe {path} is not YAML: line ")
    assert len(said.splitlines()) == 1
    assert "unicode string" not in said
    assert len(refusal("tiny-cpu", "update={lr: 1").splitlines()) == 1
