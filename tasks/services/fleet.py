"""The interface between the training loop and any kind of inference engine."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol


class EngineAddress(NamedTuple):
    """Where a policy samples: the engine's URL and, if adapters are published, the name of the adapter to sample with."""

    url: str
    adapter: str | None = None


class EngineFleet(Protocol):
    """Engines that all serve the same version of the weights. A second kind of engine is another class with these methods."""

    @property
    def addresses(self) -> list[EngineAddress]:
        """One address per engine; they may change with a publish."""
        ...

    @property
    def tells_version(self) -> bool:
        """Whether each sampled action names the version of the weights that sampled it."""
        ...

    async def publish(self, checkpoint: Path | None, version: str) -> None:
        """Make every engine serve a local checkpoint, or the initial model if it is None, under the name `version`.

        Raises EngineError if one of them does not.
        """
        ...

    async def serve(self, version: str, bring: Callable[[], Awaitable[Path | None]]) -> None:
        """Publish again in the engines that serve another version; `bring` returns the checkpoint and is called at most once."""
        ...

    async def prove(self, version: str, token_ids: Sequence[int], logprobs: Sequence[float]) -> float:
        """Return the largest difference over all engines, in nats, between their log-probs of a sequence and `logprobs`.

        `logprobs[i]` is that of `token_ids[i + 1]`. Raises BrokenInvariantError if an engine serves another version.
        """
        ...

    def check_health(self) -> None:
        """Raises EngineError as soon as an engine has ended for good, so that nobody waits for it."""
        ...
