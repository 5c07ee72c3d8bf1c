"""Demonstrations as training pairs: the context of each action, and the action."""

import asyncio
from dataclasses import dataclass

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.corpus.search import SearchTool
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.warmstart.demonstrators import record
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.sums import sums
from nbrl.tasks.warmstart.tiny_agent import TINY_AGENT

PER_WORLD = 500
# Far from the small seeds that runs take, so that their worlds are new to the policy.
WORLDS_FROM = 1_000_000_000


@dataclass(frozen=True)
class Example:
    """One sampled action under its root path; only the action is learned."""

    prompt: list[int]
    action: list[int]


def examples(trajectories: list[Trajectory]) -> list[Example]:
    """Every action of every trajectory, exactly as the policy would meet it."""
    return [Example(t.path(node.parent), node.token_ids) for t in trajectories for node in t.sampled()]


@dataclass(frozen=True)
class Demonstrations:
    """The two phases: copying (good only), then habits (good and bad)."""

    copying: list[Example]
    habits: list[Example]


def record_demonstrations(settings: WarmstartSettings, tokenizer: ChatTokenizer) -> Demonstrations:
    """Deterministic in the settings. Many worlds, so that who is whose is never worth knowing by heart."""
    copying = round(settings.demonstrations * settings.copying_share)
    seed = WORLDS_FROM + settings.seed * settings.demonstrations
    first = _record(seed, copying, 1.0, settings.sums, tokenizer)
    mixed = _record(seed + copying, settings.demonstrations - copying, settings.good_fraction, settings.sums, tokenizer)
    return Demonstrations(first, mixed)


def _record(seed: int, n: int, good: float, share: float, tokenizer: ChatTokenizer) -> list[Example]:
    """n demonstrations, of which this share are sums."""
    found = []
    for start in range(0, n, PER_WORLD):
        count = min(PER_WORLD, n - start)
        world = World.generate(seed + start, "train", count - round(share * count))
        problems = [*world.problems, *sums(seed + start, round(share * count))]
        search = SearchTool(Corpus.in_memory(world.corpus))
        found += examples(asyncio.run(record(problems, good, seed + start, search, tokenizer, TINY_AGENT)))
    return found
