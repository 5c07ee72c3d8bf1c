"""A model behind somebody else's server as an EngineFleet: it samples, but it is never given weights."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.services.fleet import EngineAddress, Finding


class EndpointFleet:
    """An EngineFleet for evaluations. What weights the server has is not known, so that nothing is checked about them."""

    tells_version = False

    def __init__(self, url: str) -> None:
        self.addresses = [EngineAddress(url)]

    async def publish(self, checkpoint: Path | None, version: str) -> None:
        raise BrokenInvariantError(f"weights cannot be published to {self.addresses[0].url}")

    async def serve(self, version: str, bring: Callable[[], Awaitable[Path | None]]) -> None:
        """The server serves what it serves."""

    async def prove(self, checkpoint: Path, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        raise BrokenInvariantError(f"{self.addresses[0].url} is not known to serve weights of ours")

    def check_health(self) -> None:
        """A server that is away is found out by those who ask it."""
