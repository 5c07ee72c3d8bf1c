"""What can go wrong here, and how it is said."""

import socket

import httpx
from verifiers.v1.errors import ProviderError

CHARS, CAUSES = 600, 5
# A judge, an index or another machine that is away; no arguments of a model's bring that about.
INFRASTRUCTURE = (ProviderError, ConnectionError, TimeoutError, socket.gaierror, httpx.TransportError)


class TasksetRefusalError(Exception):
    """What was asked for cannot be done; whose fault that is, is known."""


class TooLongError(BaseException):
    """Code of a taskset kept the process for longer than a slice, without waiting; it is none that a taskset catches."""


def causes(error: BaseException) -> list[BaseException]:
    """Return an error and what caused it."""
    found = [error]
    while len(found) < CAUSES and (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def is_infrastructure(error: BaseException) -> bool:
    """Return whether it is none of the trajectory's doing, which is tried again."""
    return any(isinstance(each, INFRASTRUCTURE) for each in causes(error))


def in_words(error: BaseException) -> str:
    """Return type and message of an error, and of what caused it, in a line."""
    said = [f"{type(each).__name__}: {each}" if str(each) else type(each).__name__ for each in causes(error)]
    return " ".join("; caused by ".join(said).split())[:CHARS]
