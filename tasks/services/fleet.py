"""The interface between the training loop and any kind of inference engine."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from nbrl.infra.engine.comparison import Comparison
from nbrl.tasks.learner.proof import ProofSequence


class EngineAddress(NamedTuple):
    """Where a policy samples: the engine's URL and, if adapters are published, the name of the adapter to sample with."""

    url: str
    adapter: str | None = None


class Finding(NamedTuple):
    """What one engine answered to a proof: its log-probs less the trainer's, and what it found of its weights.

    `weights` is None where an adapter is served, which is not among them.
    """

    engine: str
    differences: list[float]
    weights: Comparison | None


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

    async def prove(self, checkpoint: Path, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        """Return what each engine has of a local checkpoint that was published as `version`.

        Raises BrokenInvariantError if an engine serves another version.
        """
        ...

    def check_health(self) -> None:
        """Raises EngineError as soon as an engine has ended for good, so that nobody waits for it."""
        ...
