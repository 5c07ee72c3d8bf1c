"""Demonstrations as orders to the learner: blocks of optimiser steps, after each of which there is a checkpoint."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from nbrl.agent.trajectory import Trajectory, to_table
from nbrl.infra.errors import StorageError
from nbrl.infra.gpu import gpus
from nbrl.infra.ray_cluster import check_address
from nbrl.infra.storage import Storage
from nbrl.tasks.advantage.estimate import ADVANTAGES_SCHEMA
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.gpu_memory import check_devices
from nbrl.tasks.runs.preflight import check_makeable, check_workers
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.settings import Phase, WarmstartSettings
from nbrl.tasks.warmstart.sources.source import Demonstrations
from nbrl.tasks.warmstart.start import check_environments, check_start, start_digest
from nbrl.tasks.warmstart.work_folder import Block, WarmstartPlan, WorkFolder, check_free, identity, unfinished
from nbrl.tasks.warmstart.work_folder import check as check_folder

UNPROVED = [0, 0]  # no engine serves these weights, so next to nothing is forwarded to prove them
FRESH = "fresh"  # in place of the digest of a model that the settings describe


def make_plan(
    settings: WarmstartSettings,
    stages: Mapping[str | None, DemonstrationAgent],
    work: WorkFolder,
    held_out: frozenset[str],
) -> WarmstartPlan:
    """Record the demonstrations, each source's on the stage of its environment, and write the orders' tables.

    Questions that are `held_out` are left out. Raises ConfigError if a source gives nothing.
    """
    blocks: list[Block] = []
    tables: dict[str, str] = {}
    demonstrations: dict[str, tuple[int, int]] = {}
    for name, phase in settings.phases.items():
        found = {
            each: source.record(stages[source.environment], derive_seed(settings.seed, name, each))
            for each, source in phase.demonstrations.items()
        }
        found = {each: unseen(some, held_out) for each, some in found.items()}
        _check(name, found)
        trajectories = [one for each in found.values() for one in each.trajectories]
        demonstrations[name] = (len(trajectories), sum(each.left_out for each in found.values()))
        steps = settings.steps(len(trajectories), phase.epochs)
        taken = walk(trajectories, steps * settings.batch, settings.seed, name)
        for first in range(0, steps, settings.checkpoint_steps):
            count = min(settings.checkpoint_steps, steps - first)
            tables |= _write(work, len(blocks), taken[first * settings.batch : (first + count) * settings.batch])
            blocks.append(Block(name, count))
    plan = WarmstartPlan(blocks=blocks, demonstrations=demonstrations)
    work.begin(plan, tables)
    return plan


def plain(question: str) -> str:
    """Return a question without what does not change it: white space and capitals."""
    return " ".join(question.split()).casefold()


def unseen(found: Demonstrations, held_out: frozenset[str]) -> Demonstrations:
    """Return the demonstrations without those of held-out questions, which count as left out."""
    texts = {plain(question) for question in held_out}
    kept = [each for each in found.trajectories if plain(each.question) not in texts]
    return Demonstrations(kept, found.left_out + len(found.trajectories) - len(kept))


def order_of(settings: WarmstartSettings, work: WorkFolder, number: int, block: Block, start: str) -> UpdateOrder:
    """Return the order of a block, which continues from the checkpoint of the one before. `start` is the first model's digest."""
    return UpdateOrder(
        iteration=number,
        seed=derive_seed(settings.seed, "block", number),
        trajectories=[StoredTable(key=work.trajectories(number))],
        advantages=StoredTable(key=work.advantages(number)),
        initial="" if number else start,
        checkpoint_in=work.checkpoint(number - 1) if number else None,
        checkpoint_out=work.checkpoint(number),
        dtype=settings.dtype,
        steps=block.steps,
        proof_token_ids=UNPROVED,
    )


def _check(phase: str, found: dict[str, Demonstrations]) -> None:
    for name, each in found.items():
        if each.trajectories:
            continue
        where = f"phases.{phase}.demonstrations.{name}"
        if not each.left_out:
            raise ConfigError(f"{where} holds no demonstrations; give a source that does")
        raise ConfigError(
            f"{where} gives no demonstration that suits this agent, {each.left_out} were left out: they come to no answer within "
            "its limits, or ask what is held out; raise the training's agent.context_tokens, agent.action_tokens or "
            "agent.max_steps, or take others"
        )


def walk(trajectories: Sequence[Trajectory], count: int, seed: int, phase: str) -> list[Trajectory]:
    """Return so many in random order, each once a pass; the copies of a later pass have ids of their own."""
    rng, taken = random.Random(f"batches {seed} {phase}"), list[Trajectory]()
    for number in range(math.ceil(count / len(trajectories))):
        again = [each.model_copy(update={"id": f"{number}-{place}-{each.id}"}) for place, each in enumerate(trajectories)]
        taken += rng.sample(again, len(again))
    return taken[:count]


def _write(work: WorkFolder, block: int, trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """Write the tables of an order; returns their digests by key.

    Every sampled action has the advantage 1. The learner splits an order by groups, so each demonstration is one.
    """
    alone = [each.model_copy(update={"group": each.id}) for each in trajectories]
    learnt = [{"trajectory": each.id, "step": node.step, "advantage": 1.0} for each in alone for node in each.sampled()]
    tables = {
        work.trajectories(block): to_table(alone),
        work.advantages(block): pa.Table.from_pylist(learnt, schema=ADVANTAGES_SCHEMA),
    }
    try:
        return {key: work.storage.write_table(key, table) for key, table in tables.items()}
    except StorageError as error:
        raise ConfigError(f"{error}; make room there, and use the same command") from error


def digest_of(settings: WarmstartSettings, storage: Storage) -> str:
    """Return what identifies the model to start from. Raises ConfigError if there is none."""
    return FRESH if settings.start is None else start_digest(settings.start, storage)


def check(settings: WarmstartSettings, training: RunConfig, storage: Storage, out: Path, home: Path) -> None:
    """Raises ConfigError for what cannot work, as far as is known at once. No model is fetched."""
    check_environments(settings, training)
    for source in settings.sources.values():
        source.check()
    check_makeable("--home", home)
    check_free(out)
    check_makeable("the output", out.parent)
    check_workers(settings.update, settings.ray)
    if settings.ray.address is not None:
        check_address(settings.ray.address)
    check_devices(settings.update.for_learner(1), settings.ray)
    check_start(settings, training.agent, storage)
    if unfinished(out).exists():
        check_folder(out, identity(settings, training, digest_of(settings, storage)))


def describe(settings: WarmstartSettings, training: RunConfig, out: Path) -> str:
    """Return what would be done, in a few lines."""
    start = f"from {settings.start}" if settings.start else "a model made from nothing"
    update = settings.update
    adapters = f", LoRA of rank {update.lora.rank}" if update.lora else ""
    passes = update.passes_dtype(gpus() > 0)
    lines = [
        f"{out}: {start}, to act as the agent of {settings.training}",
        *(_phase(name, phase) for name, phase in settings.phases.items()),
        f"{settings.batch} demonstrations per step, lr {update.lr:g}, {passes} passes, {update.workers} workers{adapters}; "
        f"a state to continue from every {settings.checkpoint_steps} steps",
        f"prompt, but for tools: {training.agent.render_system_prompt('').text!r}",
    ]
    return "\n".join(lines)


def _phase(name: str, phase: Phase) -> str:
    sources = [_source(each, source.model_dump(exclude_defaults=True)) for each, source in phase.demonstrations.items()]
    return f"{name}: {phase.epochs:g} passes over {', '.join(sources)}"


def _source(name: str, settings: dict[str, object]) -> str:
    shown = [f"{key} {value}" for key, value in settings.items() if key != "kind"]
    return f"{name} ({': '.join(filter(None, [str(settings['kind']), ', '.join(shown)]))})"
