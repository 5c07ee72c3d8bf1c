"""JSON files of others, read into models."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from nbrl.tasks.errors import UpdateError, fault_in_words

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model]) -> Model:
    """Raises UpdateError, in one sentence, when the file is not JSON of that form."""
    try:
        return model.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UpdateError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        raise UpdateError(f"{path} is not as it should be: {fault_in_words(error)}; fetch or save it again") from error
