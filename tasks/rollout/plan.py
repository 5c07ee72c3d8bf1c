"""The plans that runners get: one as they start, and one with each round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.infra.closed import ClosedModel
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import Home
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.rollout.settings import RolloutSettings

if TYPE_CHECKING:  # with it comes the schema of trajectories, which light commands do without
    from nbrl.agent.tools.sessions import SessionSource


@dataclass(frozen=True)
class EngineAddress:
    """The engine from which a policy samples: its URL, and the key that requests must bring, empty if they need none.

    If adapters are published, `adapter` names the one to sample with, none for the initial model, and `version` its weights;
    otherwise the engine says which it has.
    """

    url: str
    adapter: str | None = None
    key: str = field(default="", repr=False)
    version: str | None = None


@dataclass(frozen=True)
class EnvironmentPlan:
    """An environment as an agent meets it. `corpus` is the key and SHA-256 of its passages on storage; None if it has none.

    `sessions` opens the sessions of its trajectories, where its questions have some.
    """

    corpus: tuple[str, str] | None = None
    tools: tuple[str, ...] | None = None
    prompt: str = ""
    sessions: "SessionSource | None" = None


class Server(ClosedModel):
    """A model behind a chat API. The environment variable `key` holds the server's key; None: it needs none."""

    chat: ChatSettings
    key: str | None = None


@dataclass(frozen=True)
class RunnerPlan:
    """The plan by which a runner starts, as plain data, so that a restarted actor starts in the same way.

    `attached` is the folder on storage of the files that questions come with, named by their SHA-256. With a `server`, that
    samples in place of our engines, and there is no model folder.
    """

    model: PlacedFolder
    environments: Mapping[str, EnvironmentPlan]
    attached: str
    storage: Storage
    agent: AgentSettings
    sandbox: SandboxSettings
    rollout: RolloutSettings
    home: Home
    server: Server | None = None
    nodes: NodeSettings = field(default_factory=NodeSettings)


@dataclass(frozen=True)
class RoundPlan:
    """The common plan of the trajectories of a round or of an evaluation.

    What finishes is kept in the folder `chunks`, where it is found again; the folders of `earlier` attempts are looked into as
    well. `trained` is the share of the training that is done, for a simulated search, and None in an evaluation. With `direct`
    the model answers at once, without a notebook; `max_steps` is the most that an episode may take, if any. With `routed` the
    experts of all tokens are recorded. `mixed` is how many updates may come in the middle of a trajectory, None for any number.
    """

    chunks: str
    earlier: tuple[str, ...]
    sampling: Sampling
    engine: EngineSettings
    trained: float | None = None
    direct: bool = False
    max_steps: int | None = None
    routed: bool = False
    mixed: int | None = None
