"""Reads what a run or an evaluation keeps of itself. Keys in it must lie below its folder: what they name is read or deleted."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BaseModel, ValidationError, ValidationInfo

from nbrl.infra.errors import DamagedError, shortened
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import fault_in_words
from nbrl.tasks.layout.runs import lies_below

OWNER = "owner"  # in the context of a validation: the folder below which keys must lie
# What tables and fields raise that are whole, and not what nbrl writes.
UNFIT = (LookupError, ValueError, TypeError, ArithmeticError, AttributeError, NotImplementedError)
KeptT = TypeVar("KeptT", bound=BaseModel)


def folder_of(key: str) -> str:
    """Return the folder of the run or the evaluation to which a key belongs."""
    return "/".join(key.split("/")[:2])


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


@contextmanager
def fitting(what: str) -> Iterator[None]:
    """Raise DamagedError where the files of `what`, which the body reads and shows, do not fit together."""
    try:
        yield
    except UNFIT as error:
        raise DamagedError(f"{what} is damaged: {misfit(error)}") from error


def misfit(error: Exception) -> str:
    """Return what is wrong with files that do not fit together, in words."""
    return f"its files do not fit together ({type(error).__name__}: {shortened(error)}); bring them back from a copy"
