"""Recomputes an iteration from its trajectories, and says where what was recorded differs."""

import math
from collections import Counter
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import SAMPLED, from_table
from nbrl.infra.parse import json_value
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.infra.storage import Storage
from nbrl.tasks.audit.sessions import SessionReplay
from nbrl.tasks.audit.stream import check_admitted, check_streamed
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.branches import branch_of
from nbrl.tasks.metrics import reduce
from nbrl.tasks.nodes.reward import facet_means, with_references
from nbrl.tasks.nodes.rollout import check_weights, rollout_metrics, task_rows
from nbrl.tasks.nodes.select import expired_in, sampled, selected
from nbrl.tasks.nodes.streamed import next_position, rule_of, stream_rows
from nbrl.tasks.nodes.update import advantage_table, kept_rows, reward_table
from nbrl.tasks.recorded.store import ids_in, used_after
from nbrl.tasks.reward.judge.graded import recorded
from nbrl.tasks.reward.rules.rule import OF_CLASSES
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.rollout.branches import branch_rows, candidates_of, chosen
from nbrl.tasks.rollout.chunks import index_of
from nbrl.tasks.rollout.stream import groups_in, table_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Position, Record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.selection.judge import RETIRED_SCHEMA, retired
from nbrl.tasks.selection.pools import PASS_RATES_SCHEMA, rated

CLOSE = 1e-9  # floats that another processor computes may differ in their last bits


class Rescored(NamedTuple):
    """`lost` says in words which grades of a model are gone, without which `rewards` are not what they were; or it is empty."""

    rewards: pa.Table
    lost: str


def rescored(storage: Storage, config: RunConfig, trajectories: pa.Table, prompts: pa.Table, rewards: pa.Table) -> Rescored:
    """Return the rewards of the trajectories. No model is asked: its grades are read, and where it gave none `rewards` say so.

    Raises BrokenInvariantError if a question would be scored by a class that the settings do not name.
    """
    check_classes(prompts, config)
    unscored = {row["trajectory"]: row["unscored"] for row in rewards.select(["trajectory", "unscored"]).to_pylist()}
    rows, gone = recorded(with_references(trajectories, prompts), unscored, config.reward.judge, storage)
    lost = f"grades of the judge are gone, so its rewards cannot be checked: {len(gone)} in all, first {gone[0]}" if gone else ""
    again = score_table(rows, config.reward, config.agent.credit)
    return Rescored(_with_faults(again, list(unscored.values())), lost)


def check_classes(questions: pa.Table, config: RunConfig) -> None:
    """Raises BrokenInvariantError unless the settings name each class by which a question is scored, with its settings: nothing
    else of a stranger's table may choose what is called.
    """
    named = [(each.place, each.settings) for each in config.environments.values() if isinstance(each, OwnEnvironment)]
    for rule, reference in zip(questions["rule"].to_pylist(), questions["reference"].to_pylist(), strict=True):
        if rule in OF_CLASSES:
            found = json_value(reference)
            if (found["place"], found["settings"]) not in named:
                raise BrokenInvariantError(
                    f"a question is scored by {str(found['place'])[:80]!r}, which is no class that the settings name, with these "
                    "settings"
                )


def _with_faults(again: pa.Table, recorded_faults: list[str]) -> pa.Table:
    """Return faults in the words that were recorded: those of another process may name other addresses."""
    faults = again["unscored"].to_pylist()
    if len(faults) != len(recorded_faults):
        return again
    words = [recorded_ if fault and recorded_ else fault for fault, recorded_ in zip(faults, recorded_faults, strict=True)]
    return again.set_column(again.column_names.index("unscored"), "unscored", pa.array(words, pa.string()))


def check_index(storage: Storage, artifact: Artifact, trajectories: pa.Table, trunk: Artifact | None = None) -> Iterator[str]:
    """Yield the contradictions of the index and the metrics that an artifact has of a round, and `trunk` of what was branched."""
    index = storage.read_index(artifact.path, artifact.digest)
    stored, made = (each.drop_columns([PART, DIGEST, ROW]) for each in (index, index_of(from_table(trajectories), "", "")))
    if not stored.equals(made):
        yield "the index differs from the trajectories"
    branched = pa.array([branch_of(name) is not None for name in index["id"].to_pylist()], pa.bool_())
    counted = [(artifact, index)]
    if trunk is not None:
        counted = [(artifact, index.filter(branched)), (trunk, index.filter(pc.invert(branched)))]
    for each, rows in counted:
        if any(each.values.get(name) != metric.value for name, metric in rollout_metrics(rows).items()):
            yield "the counts of the rollout are not those of its index"


def sessions_twice(prompts: pa.Table, used: Collection[str]) -> Iterator[str]:
    """Yield a phrase if a recorded session is in a round twice, or was in an earlier one."""
    counts = Counter([*used, *ids_in(prompts)])
    if twice := [name for name, count in counts.items() if count > 1]:
        yield f"the session {twice[0]} was learned from more than once"


class Recompute:
    """Recomputes what the nodes of one recorded iteration made, each from what the nodes before it recorded."""

    def __init__(
        self,
        storage: Storage,
        config: RunConfig,
        run: Run,
        record: Record,
        start: Position,
        sampled_from: int,
        sessions: SessionReplay,
    ) -> None:
        """Prepare. The prompts begin at `start`; the weights that sampled, in a stream the newest of them, are those after
        `sampled_from` updates; `sessions` plays those of the trajectories again.
        """
        self._storage, self._config, self._run, self._record = storage, config, run, record
        self._start, self._sampled_from, self._sessions = start, sampled_from, sessions
        self._scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration)

    def contradictions(self) -> Iterator[str]:
        """Yield one phrase for each node whose result is not what its inputs give."""
        record, count = self._record, self._config.rollout.prompts
        if not record.rounds:
            yield "its record names no round of rollouts"
            return
        if len(record.trunks) != (len(record.rounds) if self._config.rollout.branch is not None else 0):
            yield "its record names trajectories that were branched, where none were, or not those of each round"
            return
        cursor, asked = self._start
        before = None if asked is None else self._storage.read_table(asked.path, asked.digest)
        tables = [self._read_all(round_) for round_ in record.rounds]
        questions = stored.read(self._storage, self._run.layout.data, "train")
        kept = list(accumulate((sum(table["kept"].to_pylist()) for _, _, _, table in tables), initial=0))
        for number, (prompts, trajectories, rewards, selection) in enumerate(tables):
            where = f"round {number + 1}: "
            # Before as much is drawn as a stranger may have written.
            if wrong := self._sizes(prompts, trajectories, rewards, selection):
                yield f"{where}{wrong}"
                return
            if self._config.recorded is not None:
                passed = [] if before is None else before["id"].to_pylist()
                yield from (where + words for words in sessions_twice(prompts, passed))
                cursor += len(prompts)
            elif self._config.pipeline.stream:
                groups = rule_of(self._config).first() if before is None else groups_in(before)
                cursor = next_position(rule_of(self._config), self._start) + len(self._read(record.asked[0])) + len(prompts)
                cursor -= len(groups)
                seed = self._run.seed
                yield from check_admitted(self._config, questions, seed, groups, prompts, record.iteration)
                index = record.rounds[0].trajectories
                yield from check_streamed(self._config, prompts, trajectories, index, self._sampled_from)
            else:
                expected = sampled(self._config, questions, self._run.seed, cursor, before, record.iteration)
                if not same(prompts, expected.prompts):
                    yield f"{where}the prompts are not those from position {cursor} on of the run's order"
                cursor += expected.positions
            yield from (where + words for words in self._sampled(prompts, trajectories))
            made, trunk = record.rounds[number].trajectories, record.trunks[number] if self._config.rollout.branch else None
            yield from (where + words for words in check_index(self._storage, made, trajectories, trunk))
            again = rescored(self._storage, self._config, trajectories, prompts, rewards)
            if again.lost:
                yield f"{where}{again.lost}"
            elif not same(rewards, again.rewards):
                yield f"{where}the rewards are not what the trajectories earn"
            recorded_means = record.rounds[number].rewards.values
            if any(not close(metric.value, recorded_means.get(name)) for name, metric in facet_means(rewards).items()):
                yield f"{where}the means of the rewards are not those of its table"
            old = expired_in(index_of(from_table(trajectories), "", ""), self._sampled_from, self._config.pipeline.lag)
            expired = old if self._config.pipeline.stream else ()
            chosen = selected(rewards, self._config.select, self._scope.draw("select"), count - kept[number], expired)
            if not same(selection, chosen):
                yield f"{where}the selection is not what the rewards give"
            if (after := self._asked(before, prompts, rewards)) is not None:
                before = after
                if not same(self._read(record.asked[number]), after):
                    yield f"{where}what is known of the questions that were asked is not what the rewards say"
        if record.cursor != cursor:
            yield f"the record's next prompt is {record.cursor}, but prompts up to {cursor} were sampled"
        yield from self._advantages([table for _, _, table, _ in tables], [table for *_, table in tables])
        yield from self._metrics()

    def _sizes(self, prompts: pa.Table, trajectories: pa.Table, rewards: pa.Table, selection: pa.Table) -> str:
        """Return what is wrong with the numbers of rows, by the settings and by each other; empty if nothing is."""
        config, record = self._config, self._record
        count, size = config.rollout.prompts, config.rollout.group_size
        if len(prompts) < count or (len(prompts) > count and not config.pipeline.stream):
            return f"there are {len(prompts)} prompts, and rollout.prompts is {count}"
        if len(trajectories) < len(prompts) * size:
            return f"there are {len(trajectories)} trajectories of {len(prompts)} prompts, and rollout.group_size is {size}"
        if len(trajectories) > len(prompts) * size and config.rollout.branch is None:
            return f"there are {len(trajectories)} trajectories of {len(prompts)} prompts, and rollout.group_size is {size}"
        for what, table, name, most in (
            ("prompts", prompts, "group", len(prompts)),
            ("trajectories", trajectories, "id", len(trajectories)),
            ("rewards", rewards, "trajectory", len(trajectories)),
            ("judgements", selection, "group", len(prompts)),
        ):  # few bytes can be many rows that are alike
            if len(table) > most or pc.count_distinct(table[name]).as_py() < len(table):
                return f"there are {len(table)} {what} of {len(prompts)} prompts, or one of them twice"
        if config.pipeline.stream and (flying := len(self._read(record.asked[0]))) < config.groups_in_flight:
            return f"there are {flying} groups in flight, and pipeline.in_flight is {config.groups_in_flight}"
        return ""

    def _asked(self, before: pa.Table | None, prompts: pa.Table, rewards: pa.Table) -> pa.Table | None:
        """Return the table of what was asked after a round: what does not come again, or pass rates; None where none is kept."""
        config, iteration = self._config, self._record.iteration
        if config.recorded is not None:
            return used_after(before, prompts, self._sampled_from)
        if config.select.retire_at is not None:
            known = RETIRED_SCHEMA.empty_table() if before is None else before
            return retired(known, prompts, rewards, config.select.retire_at, iteration)
        if config.select.pools is not None:
            return rated(PASS_RATES_SCHEMA.empty_table() if before is None else before, prompts, rewards, iteration)
        if config.pipeline.stream:
            rule, admitted = rule_of(config), prompts["position"].to_pylist()
            groups = rule.first() if before is None else groups_in(before)
            return table_of(rule.refilled(groups, admitted, next_position(rule, self._start), self._sampled_from))
        return None

    def _read_all(self, artifacts: tuple[Artifact, ...]) -> list[pa.Table]:
        return [self._read(artifact) for artifact in artifacts]

    def _read(self, artifact: Artifact) -> pa.Table:
        return self._storage.read_table(artifact.path, artifact.digest)

    def _sampled(self, prompts: pa.Table, trajectories: pa.Table) -> Iterator[str]:
        """Yield every trajectory once, from the right weights."""
        if self._config.pipeline.stream:
            rows = stream_rows(self._config, self._scope, prompts)
        else:
            rows = task_rows(prompts, self._config.rollout.group_size, self._scope.draw("rollout"))
        rows += self._branched(rows, trajectories)
        wanted, counts = Counter(row["id"] for row in rows), Counter(trajectories["id"].to_pylist())
        if wanted != counts:
            lost, more = sorted((wanted - counts).elements()), sorted((counts - wanted).elements())
            yield f"trajectories are missing ({', '.join(lost[:3]) or 'none'}) or too many ({', '.join(more[:3]) or 'none'})"
        versions = sampled_from(trajectories)
        if self._config.recorded is not None:
            if old := [each for each in set(versions.to_pylist()) if int(each) < self._sampled_from]:
                yield f"sessions were answered by weights {old[0]!r}, and the batch begins with {self._sampled_from}"
            return
        try:
            if not self._config.pipeline.stream:
                check_weights(versions, str(self._sampled_from))
        except BrokenInvariantError as error:
            yield str(error)
        yield from self._sessions.contradictions(rows, from_table(trajectories))

    def _branched(self, rows: list[dict[str, Any]], trajectories: pa.Table) -> list[dict[str, Any]]:
        """Return the rows of the branches that were made, of those that the trajectories before them give."""
        settings, seed = self._config.rollout.branch, self._scope.draw("branch")
        if settings is None:
            return []
        made = from_table(trajectories)
        names = {each.id for each in made}
        found = candidates_of([each for each in made if branch_of(each.id) is None], settings)
        planned = branch_rows(chosen(found, settings, seed), rows, index_of(made, "", ""), settings, seed)
        return [row for row in planned if row["id"] in names]

    def _advantages(self, rewards: list[pa.Table], selections: list[pa.Table]) -> Iterator[str]:
        table = self._record.advantages
        rows = kept_rows(rewards, selections)
        if table is None:
            if rows:
                yield "groups were kept, but no advantages were computed"
            return
        learner = self._config.learner_estimates
        credit = self._config.agent.credit
        expected = reward_table(rows) if learner else advantage_table(rows, self._config.advantage, credit)
        if not same(self._storage.read_table(table.path, table.digest), expected):
            yield "the advantages are not what the kept rewards give"

    def _metrics(self) -> Iterator[str]:
        for name, value in reduce(artifact.metrics for artifact in self._record.artifacts).items():
            if not close(value, self._record.metrics.get(name)):
                yield f"the record says {name} {self._record.metrics.get(name)}, its artifacts {value}"


def same(recorded: pa.Table, recomputed: pa.Table) -> bool:
    """Return whether two tables have the same columns and rows; floats may differ by 1e-9 of their value."""
    return set(recorded.column_names) == set(recomputed.column_names) and close(recorded.to_pylist(), recomputed.to_pylist())


def close(one: object, other: object) -> bool:
    """Return whether two values are equal, but for the last bits of floats."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(close(*pair) for pair in zip(one, other, strict=True))
    return one == other


def sampled_from(trajectories: pa.Table) -> pa.ChunkedArray:
    """Return the versions of the weights that sampled each action."""
    nodes = pc.list_flatten(trajectories["nodes"])
    kinds, versions = pc.struct_field(nodes, "kind"), pc.struct_field(nodes, "weights_version")
    return versions.filter(pc.is_in(kinds, pa.array(SAMPLED)))
