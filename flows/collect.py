"""Fills a batch: sample → rollout → reward → select, by rounds of prompts."""

from typing import NamedTuple

from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.nodes.sample import sample
from nbrl.tasks.nodes.select import select
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import no_signal
from nbrl.tasks.services.services import Services


class Batch(NamedTuple):
    """What the nodes of each round made, with the weights after `updates` updates. `cursor` is the position of the first prompt
    after the batch; `skipped` says why nothing can be learned from it, and is empty otherwise.
    """

    prompts: list[Artifact]
    trajectories: list[Artifact]
    rewards: list[Artifact]
    selections: list[Artifact]
    updates: int
    cursor: int
    skipped: str

    @property
    def artifacts(self) -> list[Artifact]:
        return [*self.prompts, *self.trajectories, *self.rewards, *self.selections]


async def collect(services: Services, scope: Scope, cursor: int) -> Batch:
    """Fill the batch of an iteration, sampled from the weights of `scope`. `cursor` is the position of its first prompt."""
    config = services.config
    prompts, trajectories, rewards, selections = list[Artifact](), list[Artifact](), list[Artifact](), list[Artifact]()
    missing = config.rollout.prompts  # groups
    for round_ in range(config.select.max_rounds):
        prompts.append(await sample(services, scope, cursor, round_))
        trajectories.append(await rollout(services, scope, prompts[-1], round_))
        rewards.append(await reward(services, scope, prompts[-1], trajectories[-1], round_))
        selections.append(await select(services, scope, rewards[-1], missing, round_))
        cursor += config.rollout.prompts
        missing -= int(selections[-1].values["select/kept"])
        if missing <= 0:
            break
    skipped = no_signal([selection.values for selection in selections]) if missing == config.rollout.prompts else ""
    return Batch(prompts, trajectories, rewards, selections, scope.updates, cursor, skipped)
