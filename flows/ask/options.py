"""Settings out of a command's options."""

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nbrl.tasks.errors import ConfigError, first_fault

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], /, **options: Any) -> Model:
    """A settings model of these values. Raises ConfigError, in one sentence that names the option."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        place, said = first_fault(error)
        raise ConfigError(f"--{place[0].removesuffix('_s').replace('_', '-')}: {said}" if place else said) from error


def checked_file(model: type[Model], content: Any, file: Path) -> Model:
    """A settings model of what `file` holds. Raises ConfigError, in one sentence that names file and key."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        place, said = first_fault(error)
        raise ConfigError(f"{file}: {'.'.join(place)}: {said}" if place else f"{file}: {said}") from error
