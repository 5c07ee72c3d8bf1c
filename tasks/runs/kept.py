"""Reads what a run or an evaluation keeps of itself. Keys in it must lie below its folder: what they name is read or deleted."""

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError, ValidationInfo

from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import fault_in_words

OWNER = "owner"  # in the context of a validation: the folder below which keys must lie
KeptT = TypeVar("KeptT", bound=BaseModel)


def folder_of(key: str) -> str:
    """The folder of the run or the evaluation to which a key belongs."""
    return "/".join(key.split("/")[:2])


def lies_below(key: str, folder: str) -> bool:
    parts: Sequence[str] = key.split("/")
    return key.startswith(f"{folder}/") and not {"", ".", ".."}.intersection(parts)


def _own(key: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get(OWNER)
    if folder and key and not lies_below(key, folder):
        raise ValueError(f"{key!r} does not lie below {folder}")
    return key


Key = Annotated[str, AfterValidator(_own)]


def read_kept(storage: Storage, key: str, model: type[KeptT]) -> KeptT:
    """Raises MissingError and, where it is not what nbrl writes there, DamagedError."""
    try:
        return model.model_validate(storage.read_json(key), context={OWNER: folder_of(key)})
    except ValidationError as error:
        raise DamagedError(f"{storage.uri(key)} is not what was written there: {fault_in_words(error)}") from error
