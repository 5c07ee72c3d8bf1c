"""The keys of a settings model, as recipes and `--set` use them."""

from typing import get_args, get_origin

from pydantic import BaseModel


def members(annotation: object) -> list[type[BaseModel]]:
    """The settings models that an annotation allows: itself, the members of a union, or the values of a mapping or list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in members(each)]


def is_mapping(annotation: object) -> bool:
    """Whether the annotation is a mapping, whose keys the user chooses."""
    return get_origin(annotation) is dict


def dotted(model: type[BaseModel], above: str = "") -> list[str]:
    """All keys of a model and its sections, including alternative sections, but no keys below names that the user chooses."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        sections = [] if is_mapping(field.annotation) else members(field.annotation)
        below = [key for section in sections for key in dotted(section, f"{above}{name}.")]
        keys += below or [f"{above}{name}"]
    return list(dict.fromkeys(keys))
