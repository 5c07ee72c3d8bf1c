"""A model behind somebody else's server as an EngineFleet: it samples, but it is never given weights."""

from collections.abc import Sequence

from nbrl.infra.placed_folder import PlacedFolder
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.services.fleet import Finding, WeightSource


class EndpointFleet:
    """An EngineFleet for evaluations. What weights the server has is not known, so that nothing is checked about them."""

    tells_version = False

    def __init__(self, url: str) -> None:
        self._url = url

    def addresses(self, version: str) -> list[EngineAddress]:
        return [EngineAddress(self._url)]

    async def lend_memory(self) -> None:
        """The server's memory is its own."""

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        raise BrokenInvariantError(f"weights cannot be published to {self._url}")

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        """The server serves what it serves."""

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        raise BrokenInvariantError(f"{self._url} is not known to serve weights of ours")

    def check_health(self) -> None:
        """A server that is away is found out by those who ask it."""
