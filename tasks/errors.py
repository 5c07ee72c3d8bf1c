"""Errors of the DAG. A bad trajectory is data and never one of these."""


class RunError(Exception):
    """The run cannot go on; the message says what is wrong, where, and how to mend it."""


class ConfigError(RunError):
    """The configuration cannot work. Raised before any work starts."""


class RolloutError(RunError):
    """The infrastructure under the rollouts failed beyond the retry budget."""


class NothingLearnedError(RunError):
    """The run made no update: no iteration had a group of which something could be learned."""


class BrokenInvariantError(RunError):
    """Something that must always hold does not; going on would train on wrong data."""


class UpdateError(RunError):
    """An order that cannot be carried out, or a learner that is gone; the message says why in one line."""
