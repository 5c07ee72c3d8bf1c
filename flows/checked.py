"""Settings out of a command's options."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from tasks.errors import ConfigError

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], **options: Any) -> Model:
    """A settings model of these values. Raises ConfigError, in one sentence that names the option."""
    try:
        return model.model_validate(options)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        name = f"--{str(fault['loc'][0]).removesuffix('_s').replace('_', '-')}: " if fault["loc"] else ""
        raise ConfigError(f"{name}{fault['msg'].removeprefix('Value error, ')}") from error
