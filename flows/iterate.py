"""One iteration as a DAG: sample → rollout → reward → select → advantage → update → publish → record."""

import time

from prefect import flow

from nbrl.flows.watch import Watch
from nbrl.tasks.nodes.advantage import advantage, nothing_to_gain
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.nodes.record import record
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.nodes.sample import sample
from nbrl.tasks.nodes.select import select
from nbrl.tasks.nodes.update import update
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import no_signal
from nbrl.tasks.services.services import Services


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run}-{scope.iteration:06d}")
async def iterate(services: Services, scope: Scope, cursor: int, watch: Watch) -> Record:
    """Rounds of prompts fill the batch, one step learns from it, its weights go live. `cursor` is the first prompt to ask.

    Where no round has a group with signal, or all steps of what was kept are worth the same, there is no update, and the record
    says why.
    """
    started = time.monotonic()
    config = services.config
    trajectories, rewards, selections = list[Artifact](), list[Artifact](), list[Artifact]()
    wanted = config.rollout.prompts
    for round_ in range(config.select.max_rounds):
        prompts = await watch.node("sample", sample(services, scope, cursor, round_))
        asked = config.rollout.prompts * config.rollout.group_size
        trajectories.append(await watch.node("rollout", rollout(services, scope, prompts, round_), asked, services.follow))
        rewards.append(await watch.node("reward", reward(services, scope, prompts, trajectories[-1], round_)))
        selections.append(await watch.node("select", select(services, scope, rewards[-1], wanted, round_)))
        cursor += config.rollout.prompts
        wanted -= int(selections[-1].metrics["select/kept"])
        if wanted <= 0:
            break
    made = [*trajectories, *rewards, *selections]
    skipped = no_signal([selection.metrics for selection in selections]) if wanted == config.rollout.prompts else ""
    if not skipped:
        made.append(await watch.node("advantage", advantage(services, scope, rewards, selections)))
        skipped = nothing_to_gain(made[-1].metrics)
    if not skipped:
        made.append(await watch.node("update", update(services, scope, made[-1], trajectories)))
        skipped = "" if made[-1].metrics["update/steps"] else "no optimiser step was taken, for none had a gradient"
        made.append(await watch.node("publish", publish(services, scope, made[-1])))
    return await watch.node("record", record(services, scope, made, trajectories[0], cursor, watch.seconds, started, skipped))
