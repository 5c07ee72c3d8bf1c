"""Writes docs/settings.md from the settings models, so that the page cannot drift from the code.

Usage: python docs/settings.py
"""

from pathlib import Path
from typing import get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tasks.config import RunConfig

PAGE = Path(__file__).with_name("settings.md")
HEAD = """# Settings

Every key of a recipe. A recipe is a YAML file of these sections; `--set section.key=value` overrides one. An unknown key, a value
of the wrong kind or settings that cannot work together are errors before any work starts. Written by `docs/settings.py`.
"""


def members(annotation: object) -> list[type[BaseModel]]:
    """Settings models an annotation allows: itself, or the members of a union."""
    return [m for m in (annotation, *get_args(annotation)) if isinstance(m, type) and issubclass(m, BaseModel)]


def kind(field: FieldInfo) -> str:
    text = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
    text = text.replace("typing.", "").replace("NoneType", "None").replace("pathlib.", "").replace("|", "or")
    limits = [f"{sign} {value:g}" for m in field.metadata for sign, value in bounds(m)]
    return ", ".join([text, *limits])


def bounds(constraint: object) -> list[tuple[str, float]]:
    match constraint:
        case Ge(ge=value):
            return [("≥", value)]
        case Gt(gt=value):
            return [(">", value)]
        case Le(le=value):
            return [("≤", value)]
        case Lt(lt=value):
            return [("<", value)]
        case _:
            return []


def section(path: str, model: type[BaseModel]) -> list[str]:
    lines = [
        f"\n## {path or 'top level'}\n",
        (model.__doc__ or "").strip().replace("\n    ", "\n"),
        "\n| key | kind | default | |\n|---|---|---|---|",
    ]
    nested: list[str] = []
    for name, field in model.model_fields.items():
        inner = members(field.annotation)
        dotted = f"{path}.{name}" if path else name
        if inner:
            for each in inner:
                nested += section(dotted if len(inner) == 1 else f"{dotted} ({each.__name__})", each)
            continue
        default = "required" if field.is_required() else repr(field.get_default(call_default_factory=True))
        default = default if len(default) < 60 else "see the code"
        lines.append(f"| `{name}` | {kind(field)} | `{default}` | {field.description or ''} |")
    return [line for line in lines if line] + nested


def page() -> str:
    return HEAD + "\n".join(section("", RunConfig)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
