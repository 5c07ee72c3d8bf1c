"""select: keeps groups that carry signal (DAPO's dynamic sampling, arXiv 2503.14476, as softened in L0)."""

from collections import Counter
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.tasks.environments.mixture import Taken, prompts_from
from nbrl.tasks.metrics import Metric, of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.rollout.finished import group_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import DROPPED, RETIRED_SCHEMA, SCHEMA, TRAJECTORIES, by_group, judge_table, resampled, retired
from nbrl.tasks.selection.pools import PASS_RATES_SCHEMA, drawn_from, rated, sizes
from nbrl.tasks.selection.settings import SelectSettings
from nbrl.tasks.services.services import Services


def selected(rewards: pa.Table, settings: SelectSettings, seed: int, missing: int, expired: Collection[str] = ()) -> pa.Table:
    """Judge every group; of those with signal, the first `missing` fill the batch and the rest are surplus. Those that have
    `expired` are not kept.

    With `resample_to` the column `trajectories` names those of a kept group that are learned from.
    """
    rows = judge_table(by_group(rewards), settings, seed).to_pylist()
    free = missing
    for row in rows:
        if row["group"] in expired:
            row.update(kept=False, reason="expired")
        if row["kept"] and free == 0:
            row.update(kept=False, reason="surplus")
        free -= row["kept"]
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    if settings.resample_to is None:
        return table
    names = [_resampled(rewards, row, settings.resample_to, seed) for row in rows]
    return table.append_column(TRAJECTORIES, pa.array(names, pa.list_(pa.string())))


def _resampled(rewards: pa.Table, judged: dict[str, Any], count: int, seed: int) -> list[str]:
    """Return the trajectories of a judged group that are learned from; none of one that was dropped."""
    if not judged["kept"]:
        return []
    return resampled(rewards.filter(pc.equal(rewards["group"], judged["group"])).to_pylist(), count, seed)


def expired_in(index: pa.Table, updates: int, lag: int) -> set[str]:
    """Return the groups of which weights sampled an action that are more than `lag` older than those after `updates` updates."""
    pairs = zip(index["id"].to_pylist(), index["versions"].to_pylist(), strict=True)
    return {group_of(name) for name, versions in pairs if any(updates - int(each) > lag for each in versions)}


@durable
def select(
    services: Services, scope: Scope, rewards: Artifact, missing: int, round_: int, streamed: Artifact | None = None
) -> Artifact:
    """Judge every group of a round, of which `missing` fill the batch; of `streamed` trajectories also by their age."""
    config = services.config
    old = set[str]()
    if streamed is not None:
        old = expired_in(services.storage.read_index(streamed.path, streamed.digest), scope.updates, config.pipeline.lag)
    selection = selected(services.read(rewards), config.select, scope.draw("select"), missing, old)
    path = scope.layout.round(round_).selection
    digest = services.storage.write_table(path, selection)
    rows = selection.to_pylist()
    reasons = Counter(row["reason"] for row in rows if not row["kept"])
    metrics = {f"{DROPPED}{reason}": float(count) for reason, count in sorted(reasons.items())}
    metrics["select/kept"] = float(sum(row["kept"] for row in rows))
    return Artifact(path=path, digest=digest, metrics=of(metrics, "sum"))


@durable
def retire(
    services: Services, scope: Scope, before: Artifact | None, prompts: Artifact, rewards: Artifact, share: float, round_: int
) -> Artifact:
    """Add the questions of a round of which at least this share of their group was right to those retired `before`."""
    known = RETIRED_SCHEMA.empty_table() if before is None else services.read(before)
    table = retired(known, services.read(prompts), services.read(rewards), share, scope.iteration)
    path = scope.layout.round(round_).retired
    digest = services.storage.write_table(path, table)
    return Artifact(path=path, digest=digest, metrics={"select/retired": Metric(float(len(table)), "last")})


@durable
def rate(
    services: Services, scope: Scope, before: Artifact | None, prompts: Artifact, rewards: Artifact, round_: int
) -> Artifact:
    """Add to the pass rates of the questions asked `before` those of a round."""
    known = PASS_RATES_SCHEMA.empty_table() if before is None else services.read(before)
    table = rated(known, services.read(prompts), services.read(rewards), scope.iteration)
    path = scope.layout.round(round_).pass_rates
    digest = services.storage.write_table(path, table)
    assert services.config.select.pools is not None
    counts = {f"select/{pool}": float(count) for pool, count in sizes(table, services.config.select.pools).items()}
    return Artifact(path=path, digest=digest, metrics=of(counts, "last"))


def sampled(config: RunConfig, questions: pa.Table, seed: int, cursor: int, asked: pa.Table | None, iteration: int) -> Taken:
    """Return the prompts of a round that begins at `cursor`, after what was asked before it."""
    count, pools = config.rollout.prompts, config.select.pools
    if pools is not None:
        rates = PASS_RATES_SCHEMA.empty_table() if asked is None else asked
        return drawn_from(questions, config.weights, seed, cursor, count, rates, pools, iteration)
    passed = [] if asked is None else asked["id"].to_pylist()
    return prompts_from(questions, config.weights, seed, cursor, count, passed)


@durable
def sample(services: Services, scope: Scope, cursor: int, round_: int, asked: Artifact | None = None) -> Artifact:
    """Take the prompts from position `cursor` on in the run's order of training questions, without those that are retired; or,
    with `select.pools`, by their pass rates.

    Raises DamagedError if it cannot be read what was `asked`.
    """
    config = services.config
    questions = services.reads.questions(scope.run_layout.data, "train")
    try:
        before = services.read(asked) if asked else None
        prompts, positions = sampled(config, questions, scope.seed, cursor, before, scope.iteration)
    except (DamagedError, MissingError) as error:
        made_in = scope.iteration + (1 if round_ else 0)  # counted from 1
        node = "retire" if config.select.pools is None else "rate"
        redo = f"nbrl resume {scope.run} --redo {made_in}:{node}{services.storage.settings.option}"
        raise DamagedError(f"{error}; `{redo}` makes the table again") from error
    path = scope.layout.round(round_).prompts
    digest = services.storage.write_table(path, prompts)
    count = len(prompts)
    return Artifact(path=path, digest=digest, metrics=of({"sample/prompts": count, "sample/positions": positions}, "sum"))
