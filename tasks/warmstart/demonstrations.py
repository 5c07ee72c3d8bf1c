"""Demonstrations as training pairs: the context of each action, and the action."""

import asyncio
from dataclasses import dataclass

from agent.tokens import ChatTokenizer
from agent.tools.search import SearchTool
from agent.trajectory import Trajectory
from agent.worlds.demonstrations import record
from agent.worlds.recipe import TINY_AGENT
from agent.worlds.world import World
from tasks.warmstart.settings import WarmstartSettings


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
    """Deterministic in the settings; each phase has a world of its own."""
    copying = round(settings.demonstrations * settings.copying_share)

    def phase(seed: int, n: int, good: float) -> list[Example]:
        world = World.generate(seed, "train", n)
        if not n:
            return []
        search = SearchTool(world.corpus)
        return examples(asyncio.run(record(world.problems, good, seed, search, tokenizer, TINY_AGENT)))

    first = settings.seed * 2 + 1_000_000
    return Demonstrations(
        phase(first, copying, 1.0),
        phase(first + 1, settings.demonstrations - copying, settings.good_fraction),
    )
