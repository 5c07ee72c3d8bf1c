"""Errors of the infrastructure: one sentence that says what is wrong, where, and how to fix it."""

SHOWN = 200  # characters of a library's own message


class InfraError(Exception):
    """Something with a socket, a disk or a device does not work."""


class EngineError(InfraError):
    """An inference engine did not start, died, or refused a request."""


class PlaceError(EngineError):
    """No machine of the cluster has room for an engine."""


class PublishError(EngineError):
    """New weights did not provably reach an engine."""


class StorageError(InfraError):
    """An object could not be read or written, or does not match its digest."""


class DamagedError(StorageError):
    """An object or folder differs from what was written."""


class DamagedCheckpointError(DamagedError):
    """The checkpoint that an update starts from is gone or differs from what was written."""


class MissingError(StorageError):
    """There is no such object."""


class HeldError(InfraError):
    """Another process works on the same run or evaluation."""


class ServerError(InfraError):
    """A local server (Ray, Prefect, MLflow) did not start or does not answer."""


def shortened(error: Exception) -> str:
    """Return a library's own message, or one that quotes it: the first SHOWN characters, in one line."""
    return " ".join(str(error).split())[:SHOWN]
