"""RunConfig with nothing required: the settings that a user changes, each with the type and the limits that it has there.

Prefect makes its form of this model, and refuses what the model refuses.
"""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

from nbrl.infra.closed import ClosedModel
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import members

DIFFERING = (
    "settings that differ from those of the recipe or run; what is left out is as there, but environments, and what has kinds, "
    "such as update.loss, are given whole"
)


class Section(ClosedModel):
    """A section of settings of which each may be left out."""


def _optional(model: type[BaseModel]) -> type[Section]:
    fields: dict[str, Any] = {name: _field(field) for name, field in model.model_fields.items()}
    # What checks several settings together looks at the whole RunConfig, once the changes are in it.
    return create_model(model.__name__, __base__=Section, __doc__=model.__doc__, **fields)


def _field(field: FieldInfo) -> tuple[Any, Any]:
    allowed = [each for each in get_args(field.annotation) or (field.annotation,) if each is not type(None)]
    if len(allowed) == 1 and members(allowed[0]) == allowed:
        return _optional(allowed[0]) | None, Field(None, description=field.description or allowed[0].__doc__)
    typed: Any = Annotated[(field.annotation, *field.metadata, Field(discriminator=field.discriminator))]
    return typed | None, Field(None, description=field.description)


if TYPE_CHECKING:

    class Changes(Section):
        """The settings that a user changes."""
else:
    Changes = _optional(RunConfig)


def as_overrides(changes: Section) -> list[str]:
    """Return the changes as `--set` takes them. Null changes nothing; an empty section that may be off is on."""
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in _given(changes, RunConfig, "")]


def _given(section: Section, model: type[BaseModel], above: str) -> Iterator[tuple[str, Any]]:
    values = section.model_dump(mode="json", exclude_unset=True)
    for name, value in section:
        annotation = model.model_fields[name].annotation
        if isinstance(value, Section):
            below = list(_given(value, members(annotation)[0], f"{above}{name}."))
            yield from below
            if not below and type(None) in get_args(annotation):
                yield f"{above}{name}", {}
        elif value is not None:
            yield f"{above}{name}", values[name]
