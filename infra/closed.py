"""The base of settings and of records that are kept as JSON, and what a setting's field declares about itself."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.config import JsonDict

FREE: JsonDict = {"decides": False}  # of a field of settings: it may change when a run is continued


class ClosedModel(BaseModel):
    """A model that accepts no unknown fields and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FiniteModel(BaseModel):
    """A ClosedModel without infinite numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def acts_if(key: str, *values: str | None) -> JsonDict:
    """Return the declaration of a field that acts only where the setting `key` has one of these values, or without values is set.

    A setting that is null, zero, false or empty is not set. `key` belongs to the same section, or is a dotted key from the top.
    """
    return {"acts_if": {"key": key, "values": list(values)}}


def declared(extra: object, name: str) -> Any:
    """Return what a field's `json_schema_extra` declares under a name; None if nothing."""
    return extra.get(name) if isinstance(extra, dict) else None


def idle_settings(top: BaseModel) -> Iterator[tuple[list[str], str]]:
    """Yield every setting that is not at its default and cannot act: its keys from the top, and a sentence."""
    yield from _idle(top, top, [])


def _idle(top: BaseModel, section: BaseModel, above: list[str]) -> Iterator[tuple[list[str], str]]:
    for name, field in type(section).model_fields.items():
        value, keys = getattr(section, name), [*above, name]
        condition = declared(field.json_schema_extra, "acts_if")
        acts = not condition or value == field.get_default(call_default_factory=True)
        if not acts and (sentence := _why_idle(top, section, above, ".".join(keys), condition)):
            yield keys, sentence
        for key, each in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(each, BaseModel):
                yield from _idle(top, each, [*keys, key] if key else keys)


def _why_idle(top: BaseModel, section: BaseModel, above: list[str], dotted: str, condition: dict[str, Any]) -> str | None:
    key, values = condition["key"], condition["values"]
    beside = key in type(section).model_fields
    path = ".".join([*above, key]) if beside else key
    value: Any = section if beside else top
    for part in key.split("."):
        value = getattr(value, part, None)
    if value in values if values else value:
        return None
    found = f"is {value}" if value else "is not set"
    others = " or ".join(value for value in values if value)
    remedy = f", or set {path}{f' to {others}' if others else ''}" if others or not values else ""
    return f"{dotted} has no effect where {path} {found}; leave it out{remedy}"
