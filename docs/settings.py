"""Write docs/settings.md from the settings models, so that the page cannot drift from the code.

Usage: python docs/settings.py
"""

import json
import types
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nbrl.infra.closed import declared
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import is_free, is_mapping, members
from nbrl.tasks.warmstart.settings import WarmstartSettings

PAGE = Path(__file__).with_name("settings.md")
HEAD = """# Settings

This page lists every key of a recipe. A recipe is a YAML file of these sections; `--set section.key=value` overrides a key. An
unknown key, a value of the wrong kind, settings that cannot work together, and a setting that cannot act are errors before any
work starts. Written by `docs/settings.py`.

A run may be continued with other values of the keys marked ↻, as long as `policy.path` holds the same model. Every other key
decides what is computed and must stay as it was.
"""
WARMSTART = """
# Settings of the warm start

These are the keys of `nbrl warmstart FOLDER --set key=value`.
"""
PREPARE = """
# Settings of a preparation of data

These are the keys of the recipe of `nbrl prepare`, see [data.md](data.md). `sources` and `evaluation` are lists of
such sections. Keys marked ↻ change nothing in the prepared data.
"""
NAMES = {str: "string", int: "integer", float: "number", bool: "true/false", Path: "path", Any: "value"}
LONG = 60  # a default of more characters is printed below its table


def kind(field: FieldInfo) -> str:
    """What a value may be, in words."""
    limits = [f"{sign} {value}" for m in field.metadata for sign, value in bounds(m)]
    return ", ".join([_noun(field.annotation), *limits])


def _noun(annotation: Any, plural: bool = False) -> str:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _noun(inner[0], plural)
    if origin is Literal:
        return _either([f"`{value}`" for value in inner])
    if origin in (Union, types.UnionType):
        given = [_noun(each, plural) for each in inner if each is not type(None)]
        return _either(given) + (", optional" if len(given) < len(inner) else "")
    many = "s" if plural else ""
    if origin is tuple and inner[-1] is not Ellipsis:
        return f"list{many} of {len(inner)} {_noun(inner[0], plural=True)}"
    if origin is tuple:
        return f"list{many} of {_noun(inner[0], plural=True)}"
    if origin is dict:
        return f"mapping{many} of names to {_noun(inner[1], plural=True)}"
    return NAMES[annotation] + ("" if annotation is bool else many)


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def bounds(constraint: object) -> list[tuple[str, str]]:
    match constraint:
        case Ge(ge=value):
            return [("≥", _number(value))]
        case Gt(gt=value):
            return [(">", _number(value))]
        case Le(le=value):
            return [("≤", _number(value))]
        case Lt(lt=value):
            return [("<", _number(value))]
        case _:
            return []


def _number(value: Any) -> str:
    return str(int(value)) if value == int(value) else f"{value:g}"


def default(field: FieldInfo) -> str:
    """The default as YAML has it."""
    value = field.get_default(call_default_factory=True)
    if isinstance(value, str | Path):
        return str(value) or '""'
    return json.dumps(value)


def condition(field: FieldInfo) -> str:
    """Return in words where the setting acts, if not everywhere."""
    found = declared(field.json_schema_extra, "acts_if")
    if not found:
        return ""
    values = [f"`{value}`" if value else "not set" for value in found["values"]]
    return f"; acts where `{found['key']}` is {_either(values) if values else 'set'}"


def section(path: str, model: type[BaseModel], title: str = "", note: str = "", free: bool = False) -> list[str]:
    """The table of a model's own keys under its heading, and then its sections. `free`: none of them decides a result."""
    doc = (model.__doc__ or "").strip().replace("\n    ", "\n")
    lines = [f"\n## {title or path or 'top level'}\n", doc, note, "\n| key | kind | default | |\n|---|---|---|---|"]
    nested: list[str] = []
    below: list[str] = []
    for name, field in model.model_fields.items():
        inner = members(field.annotation)
        may_change = free or is_free(field)
        dotted = f"{path}.{name}" if path else name
        for each in inner:
            optional = type(None) in get_args(field.annotation)
            note = "Left out by default." if optional else condition(field).replace("; acts", "Acts")
            nested += section(*_place(dotted, field, each, inner), note, may_change)
        if inner:
            continue
        words = "**required**" if field.is_required() else f"`{default(field)}`"
        if len(words) > LONG:
            below += [f"\nThe default of `{name}`:\n\n```text\n{default(field)}\n```"]
            words = "below"
        says = f"{field.description or ''}{condition(field)}{' ↻' if may_change else ''}"
        lines.append(f"| `{name}` | {kind(field)} | {words} | {says} |")
    return [line for line in [*lines, *below] if line] + nested


def _place(
    dotted: str, field: FieldInfo, model: type[BaseModel], inner: list[type[BaseModel]]
) -> tuple[str, type[BaseModel], str]:
    """A section's path and model, and a title that sets it apart from its alternatives."""
    dotted = f"{dotted}.NAME" if is_mapping(field.annotation) else dotted
    if len(inner) == 1:
        return dotted, model, ""
    tag = next(name for name, own in model.model_fields.items() if get_origin(own.annotation) is Literal)
    return dotted, model, f"{dotted} ({tag}: {', '.join(get_args(model.model_fields[tag].annotation))})"


def page() -> str:
    warmstart, prepare = section("", WarmstartSettings)[1:], section("", PrepareSettings)[1:]
    pages = [HEAD + "\n".join(section("", RunConfig)), WARMSTART, "\n".join(warmstart), PREPARE, "\n".join(prepare)]
    return "\n".join(pages) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
