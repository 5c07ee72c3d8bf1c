"""The settings that decide what a run computes, the differences of two configurations in them, and the keys of a settings model.

A field with `json_schema_extra=FREE` may change when a run is continued; every other one may not.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nbrl.infra.closed import declared

SHOWN_CHARS = 60  # of a value


def is_free(field: FieldInfo) -> bool:
    """Return whether the setting may change when a run is continued."""
    return declared(field.json_schema_extra, "decides") is False


def chosen(settings: BaseModel) -> dict[str, Any]:
    """Return the settings that decide a result and are not at their defaults, as JSON values by dotted key."""
    found: dict[str, Any] = {}
    for name, value in settings:
        field = type(settings).model_fields[name]
        if is_free(field) or value == field.get_default(call_default_factory=True):
            continue
        sections = {name: value} if isinstance(value, BaseModel) else {}
        if isinstance(value, dict):
            sections = {f"{name}.{each}": below for each, below in value.items() if isinstance(below, BaseModel)}
        for place, section in sections.items():
            found |= {f"{place}.{key}": leaf for key, leaf in chosen(section).items()}
        if not sections:
            found[name] = settings.model_dump(mode="json", include={name})[name]
    return found


def decisive(settings: BaseModel, all_: bool = False) -> dict[str, Any]:
    """Return the settings that decide a result, or with `all_` every one, as JSON values by dotted key."""
    dumped = settings.model_dump(mode="json")
    leaves: dict[str, Any] = {}
    for name, value in settings:
        if not all_ and is_free(type(settings).model_fields[name]):
            continue
        if isinstance(value, BaseModel):
            leaves |= {f"{name}.{key}": leaf for key, leaf in decisive(value, all_).items()}
        elif isinstance(value, dict) and value and all(isinstance(each, BaseModel) for each in value.values()):
            below = {f"{name}.{each}": decisive(section, all_) for each, section in value.items()}
            leaves |= {f"{section}.{key}": leaf for section, keys in below.items() for key, leaf in keys.items()}
        else:
            leaves[name] = dumped[name]
    return leaves


def digest(settings: BaseModel) -> str:
    """Return the SHA-256 of the settings that decide a result."""
    return hashlib.sha256(json.dumps(decisive(settings), sort_keys=True).encode()).hexdigest()


def differences(began: BaseModel, now: BaseModel, what: str) -> list[str]:
    """Return one phrase for each decisive key in which two configurations differ; `what` is what began with the first one."""
    return leaf_differences(decisive(began), decisive(now), what)


def leaf_differences(before: Mapping[str, Any], after: Mapping[str, Any], what: str) -> list[str]:
    """Return the same as `differences`, for values by dotted key. A key that is null in one and missing in the other, as in a
    section that one of them lacks, is left out if others differ.
    """
    differing = [key for key in dict.fromkeys([*after, *before]) if before.get(key, _ABSENT) != after.get(key, _ABSENT)]
    changed = [key for key in differing if before.get(key) != after.get(key)]
    return [f"{key} is {_shown(after, key)}, the {what} began with {_shown(before, key)}" for key in changed or differing]


_ABSENT = object()


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    if leaves.get(key) is None:
        return "not set"
    text = json.dumps(leaves[key], ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def members(annotation: object) -> list[type[BaseModel]]:
    """Return the settings models that an annotation allows: itself, members of a union, values of a mapping or list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for each in get_args(annotation) for model in members(each)]


def is_mapping(annotation: object) -> bool:
    """Return whether the annotation is a mapping, whose keys the user chooses."""
    return get_origin(annotation) is dict


def dotted(model: type[BaseModel], above: str = "") -> list[str]:
    """Return all keys of a model and its sections, also alternative ones, but none below names that the user chooses."""
    keys: list[str] = []
    for name, field in model.model_fields.items():
        sections = [] if is_mapping(field.annotation) else members(field.annotation)
        below = [key for section in sections for key in dotted(section, f"{above}{name}.")]
        keys += below or [f"{above}{name}"]
    return list(dict.fromkeys(keys))
