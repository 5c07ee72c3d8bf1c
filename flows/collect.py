"""Fills a batch: sample → rollout → reward → select, by rounds of prompts."""

from typing import NamedTuple

from nbrl.tasks.nodes.retire import retire
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.nodes.sample import sample
from nbrl.tasks.nodes.select import select
from nbrl.tasks.runs.history import Position
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import no_signal
from nbrl.tasks.services.services import Services


class Batch(NamedTuple):
    """What the nodes of each round made, with the weights after `updates` updates. `after` is where the next batch begins;
    `skipped` says why nothing can be learned from this one, and is empty otherwise.
    """

    prompts: list[Artifact]
    trajectories: list[Artifact]
    rewards: list[Artifact]
    selections: list[Artifact]
    retirements: list[Artifact]
    updates: int
    after: Position
    skipped: str

    @property
    def artifacts(self) -> list[Artifact]:
        return [*self.prompts, *self.trajectories, *self.rewards, *self.selections, *self.retirements]


async def collect(services: Services, scope: Scope, start: Position) -> Batch:
    """Fill the batch of an iteration, whose prompts begin at `start`, sampled from the weights of `scope`."""
    config, (cursor, retired) = services.config, start
    prompts, trajectories, rewards, selections = list[Artifact](), list[Artifact](), list[Artifact](), list[Artifact]()
    retirements = list[Artifact]()
    missing = config.rollout.prompts  # groups
    for round_ in range(config.select.max_rounds):
        prompts.append(await sample(services, scope, cursor, round_, retired))
        trajectories.append(await rollout(services, scope, prompts[-1], round_))
        rewards.append(await reward(services, scope, prompts[-1], trajectories[-1], round_))
        selections.append(await select(services, scope, rewards[-1], missing, round_))
        if config.select.retire_at is not None:
            retired = await retire(services, scope, retired, prompts[-1], rewards[-1], config.select.retire_at, round_)
            retirements.append(retired)
        cursor += int(prompts[-1].values["sample/positions"])
        missing -= int(selections[-1].values["select/kept"])
        if missing <= 0:
            break
    skipped = no_signal([selection.values for selection in selections]) if missing == config.rollout.prompts else ""
    return Batch(prompts, trajectories, rewards, selections, retirements, scope.updates, Position(cursor, retired), skipped)
