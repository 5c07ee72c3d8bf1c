"""One iteration as a DAG: sample → rollout → reward → select → advantage → update → publish → record."""

import time

from prefect import flow

from flows.watch import Watch
from tasks.advantage.node import advantage, nothing_to_gain
from tasks.history import Record
from tasks.parts import Parts
from tasks.publish import publish
from tasks.record import record
from tasks.reward.node import reward
from tasks.rollout.node import rollout
from tasks.sample import sample
from tasks.scope import Artifact, Scope
from tasks.select.judge import no_signal
from tasks.select.node import select
from tasks.update.node import update


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run}-{scope.iteration:06d}")
async def iterate(parts: Parts, scope: Scope, cursor: int, watch: Watch) -> Record:
    """Rounds of prompts fill the batch, one step learns from it, its weights go live. `cursor` is the first prompt to ask.

    Where no round has a group with signal, or all steps of what was kept are worth the same, there is no update, and the record
    says why.
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
    made = [*trajectories, *rewards, *selections]
    skipped = no_signal([selection.metrics for selection in selections]) if wanted == config.rollout.prompts else ""
    if not skipped:
        made.append(await watch.node("advantage", advantage(parts, scope, rewards, selections)))
        skipped = nothing_to_gain(made[-1].metrics)
    if not skipped:
        made.append(await watch.node("update", update(parts, scope, made[-1], trajectories)))
        skipped = "" if made[-1].metrics["update/steps"] else "no optimiser step was taken, for none had a gradient"
        made.append(await watch.node("publish", publish(parts, scope, made[-1])))
    return await watch.node("record", record(parts, scope, made, trajectories[0], cursor, watch.seconds, started, skipped))
