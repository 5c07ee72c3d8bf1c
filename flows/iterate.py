"""One iteration as a DAG: sample → rollout → reward → select → advantage → update → publish → record."""

import time

from prefect import flow

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


@flow(name="iterate", validate_parameters=False, flow_run_name="{scope.run} {scope.title}", persist_result=False)
async def iterate(services: Services, scope: Scope, cursor: int) -> Record:
    """Fill the batch by rounds of prompts, update from it and publish the weights. `cursor` is the position of the first prompt.

    If no round has a group with signal, or all kept steps have the same advantage, there is no update, and the record says
    why.
    """
    started = time.monotonic()
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
    artifacts = [*prompts, *trajectories, *rewards, *selections]
    skipped = no_signal([selection.values for selection in selections]) if missing == config.rollout.prompts else ""
    if not skipped:
        advantages = await advantage(services, scope, rewards, selections)
        artifacts.append(advantages)
        skipped = nothing_to_gain(advantages.values)
    updated: Artifact | None = None
    if not skipped:
        updated = await update(services, scope, advantages, trajectories)
        artifacts += [updated, await publish(services, scope, updated)]
        skipped = "" if updated.values["update/steps"] else "no optimiser step was taken, for none had a gradient"
    return await record(services, scope, artifacts, cursor, started, updated, skipped)
