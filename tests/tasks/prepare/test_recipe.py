"""Recipes of preparations: what is refused, and in which words."""

from pathlib import Path

import pytest
import yaml

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.preflight import load

SOURCE = {"name": "a", "path": "a.jsonl", "licence": "MIT"}
HARD = {"evaluation": "e", "root": "storage"}
RATER = {"base_url": "http://127.0.0.1:1/v1", "name": "m"}


def write(folder: Path, **settings: object) -> Path:
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"sources": [SOURCE]} | settings))
    return path


def test_paths_are_meant_from_the_recipes_folder(tmp_path: Path) -> None:
    settings = load(write(tmp_path, evaluation=[{"name": "e", "path": "../e.csv"}], rate=RATER, ratings="r", difficulty=HARD))
    assert settings.sources[0].path == tmp_path / "a.jsonl"
    assert settings.evaluation[0].path.resolve() == tmp_path.parent / "e.csv"
    assert settings.ratings == tmp_path / "r"
    assert settings.difficulty
    assert settings.difficulty.root == str(tmp_path / "storage")
    in_cloud = load(write(tmp_path, difficulty={"evaluation": "e", "root": "s3://bucket/prefix"}))
    assert in_cloud.difficulty
    assert in_cloud.difficulty.root == "s3://bucket/prefix"
    at_home = load(write(tmp_path, difficulty={"evaluation": "e"}), home="/elsewhere")
    assert at_home.difficulty
    assert at_home.difficulty.root == "/elsewhere/storage"


def test_an_override_wins(tmp_path: Path) -> None:
    assert load(write(tmp_path), ["split.seed=7"]).split.seed == 7


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": []}, "unknown key 'source' .* did you mean 'sources'"),
        ({"sources": []}, "sources in .*at least 1"),
        ({"sources": [{"name": "a", "path": "a"}]}, "needs sources.0.licence"),
        ({"sources": [SOURCE | {"lisense": "x"}]}, "unknown key 'sources.0.lisense'.*did you mean 'licence'"),
        ({"sources": [SOURCE | {"name": "a b"}]}, "sources.0.name"),
        ({"sources": [SOURCE, {**SOURCE}]}, "two sources have the name 'a'"),
        ({"sources": [SOURCE | {"columns": {"answer": "x"}}]}, "there is no column 'answer' to name; did you mean 'answers'"),
        ({"sources": [SOURCE | {"ability": "a/b"}]}, "an ability is"),
        ({"difficulty": HARD | {"min_pass_rate": 0.9, "max_pass_rate": 0.1}}, "no question would stay"),
        ({"decontaminate": {"threshold": 0.5}}, "decontaminate has no effect where evaluation is not set"),
        ({"split": {"train": 0.8, "held_out": 0.3}}, "must add up to 1"),
        ({"rate": RATER | {"base_url": "https://me:secret@host/v1"}}, "without a name or password"),
        ({"ratings": "x"}, "ratings has no effect where rate is not set"),
        ({"difficulty": {"evaluation": "../e"}}, "difficulty.evaluation"),
    ],
)
def test_what_cannot_work_is_refused_in_words(tmp_path: Path, settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load(write(tmp_path, **settings))


def test_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no recipe .*nothing.yaml"):
        load(tmp_path / "nothing.yaml")


def test_the_example_is_a_recipe() -> None:
    settings = load(Path("examples/prepare/recipe.yaml"))
    assert settings.rate
    assert settings.evaluation
