"""Settings that are changed by a typed model are those of a recipe with overrides."""

import pytest
from pydantic import ValidationError

from nbrl.tasks.runs.changes import Changes, as_overrides
from nbrl.tasks.runs.recipes import load, names


@pytest.mark.parametrize("recipe", names())
def test_all_settings_of_a_recipe_as_changes_are_the_recipe(recipe: str) -> None:
    config = load(recipe)
    again = load(recipe, as_overrides(Changes.model_validate(config.model_dump(mode="json"))))
    paths = {"home", "engine", "storage"}  # relative ones are those of the folder in which they are given
    assert again.model_dump(exclude=paths) == config.model_dump(exclude=paths)


def test_what_is_left_out_or_null_is_not_changed() -> None:
    changes = Changes.model_validate(
        {"iterations": 7, "seed": None, "update": {"lr": 1e-6, "kl_coefficient": None}, "reward": {}}
    )
    assert as_overrides(changes) == ["iterations=7", "update.lr=1e-06"]
    assert load("tiny-cpu", as_overrides(changes)).update.lr == 1e-6
    assert as_overrides(Changes()) == []


def test_a_section_that_may_be_off_is_on_when_it_is_given() -> None:
    changes = Changes.model_validate({"update": {"lora": {}, "critic": None}})
    assert as_overrides(changes) == ["update.lora={}"]
    assert load("tiny-cpu").update.lora is None
    assert load("tiny-cpu", as_overrides(changes)).update.lora is not None


def test_texts_are_the_same_texts() -> None:
    path = 'a "b": {c} # \U0001f600'
    assert load("tiny-cpu", as_overrides(Changes.model_validate({"ray": {"address": path}}))).ray.address == path


@pytest.mark.parametrize(
    "given",
    [
        {"learning_rate": 1},
        {"iterations": -1},
        {"update": {"lr": "much"}},
        {"update": {"lerning_rate": 1}},
        {"evaluate": {"mode": "guess"}},
        {"environments": {"a": {"kind": "nothing"}}},
    ],
)
def test_what_the_configuration_refuses_by_itself_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Changes.model_validate(given)
