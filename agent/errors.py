"""The agent's errors, named by the boundary at which they arise.

What a model or its cell does wrong is never an error: it is an observation or a status.
"""


class AgentError(Exception):
    """Base of the agent's errors; the message says what is wrong, where, and how to fix it."""


class PolicyError(AgentError):
    """The policy's server did not answer, or not correctly: an infrastructure fault that can be retried."""


class RefusedError(PolicyError):
    """The policy's server refuses this prompt but accepts another: once an episode has begun, its content is the reason."""


class ExhaustedError(PolicyError):
    """No further action of an episode can be sampled, and what it did is the reason."""


REFUSALS = (400, 413, 422)  # statuses of such an answer of an engine


class ToolError(AgentError):
    """A tool cannot be set up."""


class SessionError(AgentError):
    """A session of an environment, or a server that only one trajectory has, failed: an infrastructure fault."""


class TokenizerError(AgentError):
    """The tokenizer cannot render the agent's messages."""


class ContextError(AgentError):
    """The context has no space for its fixed parts."""


class RecordingError(AgentError):
    """A saved trajectory cannot be read."""
