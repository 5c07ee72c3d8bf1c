"""admit, rollout and refill of a run whose rollouts never stop: a batch is made of groups that have finished."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa

from nbrl.infra.parts import PART, parts_of
from nbrl.tasks.environments.mixture import prompts_at
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.nodes.reward import over_parts
from nbrl.tasks.nodes.rollout import check_failures, rollout_metrics, task_rows
from nbrl.tasks.rollout.chunks import copied
from nbrl.tasks.rollout.finished import group_of
from nbrl.tasks.rollout.stream import GroupInFlight, StreamRule, consecutive, groups_in, stream_ages, table_of, updates_within
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Position
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services


def rule_of(config: RunConfig) -> StreamRule:
    """Return the rule by which groups are begun and admitted."""
    mixed = 0 if config.publishes_adapters else config.pipeline.mixed
    return StreamRule(config.rollout.prompts, config.groups_in_flight, config.pipeline.admit, config.pipeline.lag, mixed)


def in_flight(services: Services, start: Position) -> list[GroupInFlight]:
    """Return the groups of which the batch at this position is made."""
    return rule_of(services.config).first() if start.asked is None else groups_in(services.read(start.asked))


def stream_prompts(config: RunConfig, questions: pa.Table, seed: int, groups: Sequence[GroupInFlight]) -> pa.Table:
    """Return a prompt for each group, with its `position` and the `updates` with which it was begun."""
    found = prompts_at(questions, config.weights, seed, 0, 1).slice(0, 0)
    for first, count in consecutive([group.position for group in groups]):
        found = pa.concat_tables([found, prompts_at(questions, config.weights, seed, first, count)])
    for name in GroupInFlight._fields:
        found = found.append_column(name, pa.array([getattr(each, name) for each in groups], pa.int64()))
    return found


def stream_rows(config: RunConfig, scope: Scope, prompts: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of the trajectories of these prompts, which do not depend on the iteration that admits them."""
    draw = scope.model_copy(update={"iteration": 0}).draw("rollout")
    return task_rows(prompts, config.rollout.group_size, draw, config.rollout.tools.search)


@durable
async def admit(services: Services, scope: Scope, start: Position) -> Artifact:
    """Wait until enough groups of those in flight have finished, and return the prompts of those that are in this batch, with the
    `parts` in which the attempts at their trajectories lie that count. Raises RolloutError where too many of those failed.
    """
    config, groups, started = services.config, await asyncio.to_thread(in_flight, services, start), time.monotonic()
    rule, questions = rule_of(config), services.reads.questions(scope.run_layout.data, "train")
    prompts = await asyncio.to_thread(stream_prompts, config, questions, scope.seed, groups)
    positions = dict(zip(prompts["group"].to_pylist(), prompts["position"].to_pylist(), strict=True))
    filled = float("inf")
    while True:
        finished = services.finished.oldest(positions, scope.updates)
        by_position = {positions[group]: oldest for group, oldest in finished.items()}
        admitted = rule.admitted(groups, by_position, scope.iteration, scope.updates)
        if admitted is not None:
            break
        if len(rule.usable(by_position, scope.updates)) >= rule.batch:
            filled = min(filled, time.monotonic())
        services.progress.advanced("admit", min(len(finished), rule.batch), rule.batch)
        await services.finished.more()
    table = prompts.filter(pa.array([position in admitted for position in prompts["position"].to_pylist()], pa.bool_()))
    attempts = [services.finished.table(names) for names in _names(config, table)]
    check_failures(pa.concat_tables(attempts), config.rollout.failed_share)
    table = table.append_column("parts", pa.array([each[PART].to_pylist() for each in attempts], pa.list_(pa.string())))
    path = scope.layout.round(0).prompts
    digest = await asyncio.to_thread(services.storage.write_table, path, table)
    counts = {
        "sample/prompts": len(table),
        "sample/waiting_seconds": time.monotonic() - started,
        "admit/due_seconds": max(0.0, time.monotonic() - filled),
        "admit/finished": len(finished) - len(table),
        "admit/unfinished": len(groups) - len(finished),
    }
    return Artifact(path=path, digest=digest, metrics=of(counts, "sum"))


@durable
async def rollout(services: Services, scope: Scope, prompts: Artifact, round_: int) -> Artifact:
    """Copy the trajectories of the admitted groups to where those of a round lie.

    Raises RolloutError where too many failed, BrokenInvariantError if an action was sampled from weights of which the run had no
    part then.
    """
    config, layout = services.config, scope.layout.round(round_)
    table = await asyncio.to_thread(services.read, prompts)
    groups, names = table["group"].to_pylist(), _names(config, table)
    services.finished.choose(admitted_attempts(config, table))
    if missing := set(groups) - services.finished.oldest(groups, scope.updates).keys():
        services.progress.say(
            f"{scope.title}: {len(missing)} of the groups that it admitted are not whole, and are sampled again"
        )
    while set(groups) - services.finished.oldest(groups, scope.updates).keys():
        await services.finished.more()
    index = services.finished.table(chain.from_iterable(names))
    check_failures(index, config.rollout.failed_share)
    given = (services.storage, layout.chunks(scope.weights.digest))
    made = await asyncio.to_thread(over_parts, services.runners, index, copied, given, "id")
    if services.engines.reports_version:
        check_begun(made, dict(zip(groups, table["updates"].to_pylist(), strict=True)), scope.updates, rule_of(config).mixed)
    ages, index = stream_ages(made, scope.updates), made.drop_columns(["tokens"])
    digest = await asyncio.to_thread(services.storage.write_table, layout.trajectories, index)
    metrics = {**rollout_metrics(index), **of(ages, "last")}
    return Artifact(path=layout.trajectories, digest=digest, parts=parts_of(index), metrics=metrics)


def _names(config: RunConfig, prompts: pa.Table) -> list[list[str]]:
    """Return the names of the trajectories of each prompt."""
    size = config.rollout.group_size
    return [[row["id"] for row in task_rows(prompts.slice(number, 1), size, 0)] for number in range(len(prompts))]


def admitted_attempts(config: RunConfig, prompts: pa.Table) -> dict[str, str]:
    """Return the part in which the attempt lies that counts, of each trajectory of what was admitted."""
    parts = chain.from_iterable(prompts["parts"].to_pylist())
    return dict(zip(chain.from_iterable(_names(config, prompts)), parts, strict=True))


def check_begun(index: pa.Table, begun: Mapping[str, int], updates: int, mixed: int | None) -> None:
    """Raises BrokenInvariantError unless all actions were sampled from weights between those with which their group was begun and
    those after `updates` updates, with at most `mixed` updates in the middle of a trajectory, if that is a number.
    """
    for name, versions in zip(index["id"].to_pylist(), index["versions"].to_pylist(), strict=True):
        first, came = begun[group_of(name)], updates_within(versions)
        if mixed is not None and came > mixed:
            raise BrokenInvariantError(f"{came} updates came in the middle of {name}, and pipeline.mixed allows {mixed}")
        if wrong := [version for version in versions if not first <= int(version) <= updates]:
            raise BrokenInvariantError(
                f"an action of {name} was sampled from weights {wrong[0]!r}, where weights {first} to {updates} were published"
            )


@durable
def refill(services: Services, scope: Scope, start: Position, prompts: Artifact) -> Artifact:
    """Begin new groups in place of those that were admitted; return those that are in flight now."""
    rule, admitted = rule_of(services.config), services.read(prompts)["position"].to_pylist()
    before = in_flight(services, start)
    groups = rule.refilled(before, admitted, next_position(rule, start), scope.updates)
    path = scope.layout.round(0).in_flight
    digest = services.storage.write_table(path, table_of(groups))
    begun = len(groups) + len(admitted) - len(before)
    return Artifact(path=path, digest=digest, metrics=of({"sample/positions": begun, "admit/in_flight": len(groups)}, "sum"))


def next_position(rule: StreamRule, start: Position) -> int:
    """Return the position of the next group that is begun."""
    return start.cursor if start.asked is not None else rule.in_flight
