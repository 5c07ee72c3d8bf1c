"""Records of finished iterations, each written last, so that its presence means that the iteration happened."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError, ConfigError, NothingLearnedError, RunError
from nbrl.tasks.layout.checkpoints import updates_of
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import IN_FLIGHT, PASS_RATES, RETIRED, TRUNKS
from nbrl.tasks.runs.kept import Key, read_kept
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Weights

if TYPE_CHECKING:  # it imports all settings
    from nbrl.tasks.runs.config import RunConfig

FEW = 3  # iterations in a row after which a small effective sample size is no accident


class Round(NamedTuple):
    """The artifacts of the nodes of one round."""

    prompts: Artifact
    trajectories: Artifact
    rewards: Artifact
    selection: Artifact


class Position(NamedTuple):
    """The place of the next prompt in the run's order of questions, and the table of what was asked, if the run has one: the
    questions or sessions that do not come again, the pass rates of all, or the groups that are in flight.
    """

    cursor: int = 0
    asked: Artifact | None = None

    def further(self, prompts: int) -> "Position":
        """Return the position so many prompts further on, none of which is skipped."""
        return self._replace(cursor=self.cursor + prompts)


class Record(BaseModel):
    """The record of an iteration of the run drawn as `run_id`, made in `epoch` and finished at `finished` (seconds since 1970).

    `cursor` is the first prompt of the next iteration. `checkpoint` holds the newest weights after this one, whose digest is
    `weights`; it is empty before the first update. `skipped` says why nothing was learned (there was no update, or one without
    an optimiser step), and is empty otherwise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    iteration: int
    cursor: int
    checkpoint: Key
    artifacts: list[Artifact]
    metrics: dict[str, float]
    skipped: str = ""
    run_id: str
    epoch: str
    finished: float
    weights: str

    @property
    def updates(self) -> int:
        """Return the number of updates that the run has made after this iteration."""
        return updates_of(self.checkpoint) if self.checkpoint else 0

    @property
    def rounds(self) -> list[Round]:
        named = [[a for a in self.artifacts if a.path.rpartition("/")[2].partition(".")[0] == name] for name in Round._fields]
        return [Round(*artifacts) for artifacts in zip(*named, strict=True)]

    @property
    def trunks(self) -> list[Artifact]:
        """Return the trajectories of each round before some were branched, of a run that branches."""
        return [artifact for artifact in self.artifacts if artifact.path.rpartition("/")[2] == TRUNKS]

    @property
    def asked(self) -> list[Artifact]:
        """Return the table of what was asked, or of a stream is in flight, after each round, of a run that has one."""
        return [artifact for artifact in self.artifacts if artifact.path.rpartition("/")[2] in (RETIRED, PASS_RATES, IN_FLIGHT)]

    @property
    def advantages(self) -> Artifact | None:
        """Return what the update learned from, if anything was."""
        return next((artifact for artifact in self.artifacts if artifact.path.endswith("/advantages.parquet")), None)

    @property
    def after(self) -> Position:
        """Return where the prompts of the next iteration begin."""
        asked = self.asked
        return Position(self.cursor, asked[-1] if asked else None)

    @property
    def policy(self) -> Weights:
        """Return the policy after this iteration."""
        return Weights(updates=self.updates, checkpoint=self.checkpoint, digest=self.weights)


def read_record(storage: Storage, run: Run, iteration: int) -> Record | None:
    """Return the record of an iteration, where it happened.

    Raises DamagedError, and BrokenInvariantError if it is of another run of that name.
    """
    key = run.layout.iteration(iteration).record
    if not storage.exists(key):
        return None
    try:
        record = read_kept(storage, key, Record)
    except DamagedError as error:
        raise DamagedError(
            f"{storage.uri(key)} is damaged: it is not what was written there; bring it back from a copy, or make it again with "
            f"`nbrl resume {run.name} --redo {iteration + 1}:record{storage.settings.option}`"
        ) from error
    if record.run_id != run.run_id:
        raise BrokenInvariantError(
            f"{storage.uri(key)} is of another run that was named {run.name!r} too; end what still trains it, and train under "
            "another name"
        )
    return record


def newest_record(storage: Storage, run: Run) -> Record | None:
    """Return the record of the last finished iteration, counted from the first without a gap."""
    count = finished_iterations(storage.list(run.layout.iterations), run.layout)
    return read_record(storage, run, count - 1) if count else None


def finished_iterations(keys: Collection[str], run: RunLayout) -> int:
    """Return the number of iterations that have a record among these keys of a run, counted from the first without a gap."""
    records, count = set(records_among(keys, run)), 0
    while run.iteration(count).record in records:
        count += 1
    return count


def records_among(keys: Collection[str], run: RunLayout) -> list[str]:
    """Return those of the keys of a run that are of records, without the ones that were put aside, by iteration."""
    record = re.compile(rf"{re.escape(run.iterations)}/\d{{6,}}/record\.json")
    return sorted(filter(record.fullmatch, keys))


def check_unbroken(storage: Storage, run: Run) -> None:
    """Raises DamagedError if a record is lost, for the later ones were made from its weights and not from those made now."""
    keys, layout = storage.list(run.layout.iterations), run.layout
    count = finished_iterations(keys, layout)
    if len(records_among(keys, layout)) > count:
        redo = f"nbrl resume {run.name} --redo {count + 1}:record{storage.settings.option}"
        raise DamagedError(
            f"{storage.uri(layout.iteration(count).record)} is gone, though later iterations have records; bring it back from a "
            f"copy, or make it and all later ones again with `{redo}`"
        )


def made_in(storage: Storage, run: Run, updates: int) -> int:
    """Return the iteration that made the update with this number: that number less one, or a later one if some were skipped."""
    iteration = updates - 1
    while (record := read_record(storage, run, iteration)) is not None and record.updates < updates:
        iteration += 1
    return iteration


def damaged_checkpoint(storage: Storage, run: Run, policy: Weights, error: DamagedError | MissingError) -> DamagedError:
    """Return the error for a damaged checkpoint of a policy, with how to make it again."""
    iteration = made_in(storage, run, policy.updates) + 1
    redo = f"nbrl resume {run.name} --redo {iteration}:update{storage.settings.option}"
    return DamagedError(f"{error}; `{redo}` makes the checkpoint again")


def policy_after(run: Run, records: Sequence[Record]) -> Weights:
    """Return the policy of a run after all of these records."""
    return records[-1].policy if records else Weights(digest=run.policy)


def position_after(records: Sequence[Record]) -> Position:
    """Return where the prompts of the iteration after these records begin."""
    return records[-1].after if records else Position()


def sampler_of(run: Run, records: Sequence[Record], iteration: int, lag: int) -> Weights:
    """Return the policy that samples the batch of an iteration: the one before the last `lag` iterations before it."""
    return policy_after(run, records[: max(0, iteration - lag)])


def newest_policy(storage: Storage, run: Run) -> Weights:
    """Return the policy after the run's last finished iteration."""
    newest = newest_record(storage, run)
    return newest.policy if newest else Weights(digest=run.policy)


def policies_in_use(storage: Storage, run: Run, lag: int) -> list[Weights]:
    """Return the policies from which the next iterations train and sample: after the last `lag` + 1 finished ones, newest
    last.
    """
    count = finished_iterations(storage.list(run.layout.iterations), run.layout)
    records = [read_record(storage, run, number) for number in range(max(0, count - 1 - lag), count)]
    policies = {record.checkpoint: record.policy for record in records if record is not None and record.checkpoint}
    return list(policies.values())


def check_samples(run: Run, records: Sequence[Record], floor: float, option: str = "") -> None:
    """Raises RunError if the effective sample size of the last iterations with an update was each time below the floor.

    `option` is that with which commands find the storage.
    """
    shares = [record.metrics["mismatch/ess_share"] for record in records if "mismatch/ess_share" in record.metrics][-FEW:]
    if len(shares) == FEW and max(shares) < floor:
        raise RunError(
            f"the samples of run {run.name!r} say little about its policy: mismatch/ess_share was "
            f"{', '.join(f'{share:.3g}' for share in shares)} in the last {FEW} iterations, below update.ess_floor {floor:g}; "
            "lower update.lr or pipeline.lag in a new run, or lower update.ess_floor and continue with "
            f"`nbrl resume {run.name}{option}`"
        )


def skipped_in_row(records: Sequence[Record]) -> int:
    """Return the number of iterations at the end from which nothing was learned."""
    count = 0
    while count < len(records) and records[-1 - count].skipped:
        count += 1
    return count


class Summary(ClosedModel):
    """`curve` is the exact match of each iteration's own rollouts; `seconds` sums the wall time by node over all iterations.

    `skipped_in_row` counts the iterations without an update at the end; `stalled` is their diagnosis in lines, and is
    empty if the run did not end because of them.
    """

    run: str
    before: dict[str, float]
    after: dict[str, float]
    iterations: int
    trajectories: int
    sampled_tokens: int
    mismatch_max: float
    overhead_share: float
    seconds: dict[str, float]
    curve: list[float]
    curve_path: str
    example: str
    skipped_in_row: int = 0
    stalled: str = ""


def finished(run: Run, config: "RunConfig", storage: Storage) -> Summary | None:
    """Return the summary of a run that already did all its iterations, or that ended early without signal, else None.

    Raises NothingLearnedError if nothing was learned in any, and ConfigError if it did more iterations than configured.
    """
    newest = newest_record(storage, run)
    if newest is not None and newest.iteration >= config.iterations:
        raise ConfigError(
            f"run {run.name!r} has done {newest.iteration + 1} iterations and iterations is {config.iterations}; set it to as "
            "many or more"
        )
    path = run.layout.summary
    if not storage.exists(path):
        return None
    try:
        summary = Summary.model_validate(storage.read_json(path))
    except (DamagedError, ValidationError) as error:
        raise DamagedError(f"{storage.uri(path)} is damaged; delete it, and the same command makes it again") from error
    if summary.iterations != config.iterations and not (summary.stalled and summary.skipped_in_row >= config.select.patience):
        return None
    return learned(summary)


def learned(summary: Summary) -> Summary:
    """Return the summary of a run that made an update or had no iterations. Raises NothingLearnedError otherwise."""
    if summary.stalled and summary.skipped_in_row == summary.iterations:
        raise NothingLearnedError(f"run {summary.run!r} learned nothing\n{summary.stalled}")
    return summary
