"""Errors of the sandbox itself. What a cell does is never an exception but an `Execution` status."""


class SandboxError(Exception):
    """The sandbox itself failed: the message says what, where, and how to fix it."""


class SandboxUnavailable(SandboxError):  # noqa: N818  (says a state, not a fault of the caller)
    """This machine cannot confine a kernel at all: bubblewrap or user namespaces are missing."""


class KernelLostError(SandboxError):
    """A kernel ended because what it ran in did: a fault of the infrastructure, not the doing of its cell."""
