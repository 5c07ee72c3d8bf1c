"""Which settings decide what a run computes, and how two configurations differ in them.

A field whose `json_schema_extra` is `{"decides": False}` may change when a run is continued; every other one may not.
"""

import hashlib
import json
from typing import Any

from pydantic import BaseModel

SHOWN_CHARS = 60  # of a value


def decisive(settings: BaseModel, all_: bool = False) -> dict[str, Any]:
    """The settings that decide a result, or with `all_` every one, as JSON values by dotted key."""
    dumped = settings.model_dump(mode="json")
    leaves: dict[str, Any] = {}
    for name, value in settings:
        if not all_ and type(settings).model_fields[name].json_schema_extra == {"decides": False}:
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
    """SHA-256 of the settings that decide a result."""
    return hashlib.sha256(json.dumps(decisive(settings), sort_keys=True).encode()).hexdigest()


def differences(began: BaseModel, now: BaseModel, what: str) -> list[str]:
    """One phrase for each decisive key in which two configurations differ; `what` is what began with the first one.

    A key that is null in one and lacks in the other, as those of a section that one of them lacks, says nothing beside others.
    """
    before, after = decisive(began), decisive(now)
    differing = [key for key in dict.fromkeys([*after, *before]) if before.get(key, _ABSENT) != after.get(key, _ABSENT)]
    telling = [key for key in differing if before.get(key) != after.get(key)]
    return [f"{key} is {_shown(after, key)}, the {what} began with {_shown(before, key)}" for key in telling or differing]


_ABSENT = object()


def _shown(leaves: dict[str, Any], key: str) -> str:
    if leaves.get(key) is None:
        return "not set"
    text = json.dumps(leaves[key], ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
