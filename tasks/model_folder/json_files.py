"""JSON files of others, read into models."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from nbrl.infra.parse import json_value
from nbrl.infra.paths import content
from nbrl.tasks.errors import UpdateError, fault_in_words

Model = TypeVar("Model", bound=BaseModel)


def read_json(path: Path, model: type[Model]) -> Model:
    """Raises UpdateError, in one sentence, when the file is not JSON of that form."""
    try:
        return model.model_validate_json(content(path))
    except OSError as error:
        raise UpdateError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        raise UpdateError(f"{path} is not as it should be: {fault_in_words(error)}; fetch or save it again") from error


def name_dtype(folder: Path, dtype: str) -> None:
    """Let the config.json of a model folder name this dtype of its weights; the file stays as it is where it does."""
    path = folder / "config.json"
    config = json_value(path.read_text())
    named = config.pop("torch_dtype", None)  # the older name of the same key
    if config.get("dtype", named) != dtype:
        path.write_text(json.dumps(config | {"dtype": dtype}, indent=2, sort_keys=True) + "\n")
