"""Turns whatever the library of tokenizers raises into one error: its files may be anybody's."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.agent.errors import TokenizerError

PANIC = "PanicException"  # of its Rust code: no Exception, and of a module that cannot be imported
SHOWN = 200


@contextmanager
def guarded(file: Path) -> Iterator[None]:
    """Raises TokenizerError for any failure of the body, in which the tokenizer of `file` is loaded or used."""
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = " ".join(str(error).split())[:SHOWN]
        raise TokenizerError(f"{file} is not a tokenizer that works: {reason}; fetch or save the model again") from error
