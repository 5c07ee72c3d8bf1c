"""Makes settings from a command's options."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nbrl.tasks.errors import ConfigError, first_fault

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], /, **options: Any) -> Model:
    """Return a settings model with these values. Raises ConfigError in one sentence that names the option."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        place, fault = first_fault(error)
        raise ConfigError(f"--{place[0].removesuffix('_s').replace('_', '-')}: {fault}" if place else fault) from error


def checked_file(model: type[Model], content: Any, file: Path) -> Model:
    """Return a settings model with the `content` of `file`. Raises ConfigError in one sentence that names file and key."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        place, fault = first_fault(error)
        raise ConfigError(f"{file}: {'.'.join(place)}: {fault}" if place else f"{file}: {fault}") from error
