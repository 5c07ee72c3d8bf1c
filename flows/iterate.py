"""One iteration as a DAG: sample → rollout → reward → select → advantage → update → publish → record."""

import time

from prefect import flow

from flows.watch import Watch
from tasks.advantage.node import advantage
from tasks.parts import Parts
from tasks.publish import publish
from tasks.record import Record, record
from tasks.reward.node import reward
from tasks.rollout.node import rollout
from tasks.sample import sample
from tasks.scope import Artifact, Scope
from tasks.select.node import select
from tasks.update.node import update


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run}-{scope.iteration:06d}")
async def iterate(parts: Parts, scope: Scope, cursor: int, watch: Watch) -> Record | None:
    """Rounds of prompts fill the batch, one step learns from it, its weights go live. `cursor` is the first prompt to ask.

    None when there is nothing to learn: no round had a group with signal, or no trajectory of such a group took a step.
    """
    started = time.monotonic()
    config = parts.config
    trajectories, rewards, selections = list[Artifact](), list[Artifact](), list[Artifact]()
    wanted = config.rollout.prompts
    for round_ in range(config.select.max_rounds):
        prompts = await watch.node("sample", sample(parts, scope, cursor, round_))
        asked = config.rollout.prompts * config.rollout.group_size
        trajectories.append(await watch.node("rollout", rollout(parts, scope, prompts, round_), asked, parts.follow))
        rewards.append(await watch.node("reward", reward(parts, scope, prompts, trajectories[-1], round_)))
        selections.append(await watch.node("select", select(parts, scope, rewards[-1], wanted, round_)))
        cursor += config.rollout.prompts
        wanted -= int(selections[-1].metrics["select/kept"])
        if wanted <= 0:
            break
    if wanted == config.rollout.prompts:
        return None
    advantages = await watch.node("advantage", advantage(parts, scope, rewards, selections))
    if not advantages.metrics["advantage/steps"]:
        return None
    updated = await watch.node("update", update(parts, scope, advantages, trajectories))
    published = await watch.node("publish", publish(parts, scope, updated))
    made = [*trajectories, *rewards, *selections, advantages, updated, published]
    return await watch.node("record", record(parts, scope, made, trajectories[0], cursor, watch.seconds, started))
