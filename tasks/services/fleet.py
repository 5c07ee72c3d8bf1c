"""The interface between the training loop and any kind of inference engine."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from nbrl.infra.engine.weight_group import Bucket, WeightComparison, WeightGroup
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.rollout.plan import EngineAddress


class Finding(NamedTuple):
    """The answer of one engine to a proof: its log-probs less the trainer's, and the comparison of its weights.

    `weights` is None where an adapter is served, which is not among them.
    """

    engine: str
    differences: list[float]
    weights: WeightComparison | None


class WeightReceiver(Protocol):
    """One engine, as a source of weights needs it. `timeout` is in seconds, of one request."""

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str: ...

    @property
    def timeout(self) -> float: ...

    async def receive(self, group: WeightGroup, buckets: Sequence[Bucket], version: str) -> WeightComparison:
        """Swap in the weights that rank 0 of a group sends, and compare them with what it sends once more.

        Raises InfraError if they do not arrive whole.
        """
        ...


class WeightSource(Protocol):
    """Gives the weights of a checkpoint to engines without a storage between."""

    async def weights(self, engines: Sequence[WeightReceiver], checkpoint: str, version: str) -> list[WeightComparison]:
        """Bring a model's weights into all engines at once, and say of each how they compare with what was sent.

        Raises InfraError or UpdateError, once all has ended, if one engine did not get all of them; then no engine answers
        requests until weights are published in it.
        """
        ...

    async def adapter(self, engines: Sequence[WeightReceiver], checkpoint: str, version: str) -> None:
        """Bring an adapter into all engines, one after the other. Raises as `weights`."""
        ...


class EngineFleet(Protocol):
    """Engines that all serve the same weights: one version of them or, as adapters, the newest ones side by side. A second kind
    of engine is another class with these methods.
    """

    def addresses(self, version: str) -> list[EngineAddress]:
        """Return one address per engine, for requests to the weights `version`; they may change."""
        ...

    @property
    def reports_version(self) -> bool:
        """Return whether each sampled action names the version of the weights that sampled it."""
        ...

    async def lend_memory(self) -> None:
        """Give the learner memory of shared GPUs until weights are published or served; no request may be in flight."""
        ...

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        """Make every engine serve a checkpoint, or the initial model if it is None, under the name `version`. Weights come from
        the `source`, or else, or where that fails, from the checkpoint's place.

        Raises EngineError if one of them does not.
        """
        ...

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        """Publish again in the engines that do not serve this version.

        Raises BrokenInvariantError if one of them then holds other weights.
        """
        ...

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        """Return what each engine has of a checkpoint that was published as `version`.

        Raises BrokenInvariantError if an engine serves another version.
        """
        ...

    def check_health(self) -> None:
        """Raises EngineError as soon as an engine has ended for good, so that no process waits for it."""
        ...


class EndpointFleet:
    """An EngineFleet for evaluations. What weights the server has is not known, so that nothing is checked about them."""

    reports_version = False

    def __init__(self, url: str) -> None:
        self._url = url

    def addresses(self, version: str) -> list[EngineAddress]:
        return [EngineAddress(self._url)]

    async def lend_memory(self) -> None:
        """Do nothing: the server's memory is its own."""

    async def publish(self, checkpoint: PlacedFolder | None, version: str, source: WeightSource | None = None) -> None:
        raise BrokenInvariantError(f"weights cannot be published to {self._url}")

    async def serve(self, checkpoint: PlacedFolder | None, version: str) -> None:
        """Do nothing: the server's weights do not change."""

    async def prove(self, checkpoint: PlacedFolder, version: str, sequences: Sequence[ProofSequence]) -> list[Finding]:
        raise BrokenInvariantError(f"{self._url} is not known to serve weights of ours")

    def check_health(self) -> None:
        """Do nothing: requests find out whether the server is away."""
