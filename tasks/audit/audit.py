"""Proves from the storage alone that a run is what its records say, or names what contradicts them."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from nbrl.infra.errors import DamagedError, StorageError
from nbrl.infra.manifest import MANIFEST
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.audit.chain import check_evaluation, check_tracking, check_update, leftovers
from nbrl.tasks.audit.recompute import Recompute
from nbrl.tasks.audit.replay import replay
from nbrl.tasks.audit.sessions import Replayed, SessionReplay
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import BrokenInvariantError, ConfigError
from nbrl.tasks.layout.stages import StageLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import (
    Record,
    finished_iterations,
    policy_after,
    position_after,
    read_record,
    records_among,
    sampler_of,
)
from nbrl.tasks.runs.kept import UNFIT, misfit, read_kept
from nbrl.tasks.runs.opening import sources_of
from nbrl.tasks.runs.results import NodeResult, results_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights


@dataclass(frozen=True)
class Contradiction:
    """`where`: `iteration 3`, `evaluation after 2 updates`, `data` and so on; `what` is a sentence."""

    where: str
    what: str


class Audit:
    """The audit of one run with the configuration that it began with."""

    def __init__(
        self,
        storage: Storage,
        config: RunConfig,
        run: Run,
        progress: Callable[[str], None],
        with_checkpoints: bool = True,
        bounds: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Prepare. Without checkpoints, as of a published run, it is no contradiction that the newest one is gone. All but an
        update that is done again happens within `bounds`.
        """
        self._storage, self._config, self._run, self._progress = storage, config, run, progress
        self._with_checkpoints, self._bounds = with_checkpoints, bounds
        self._sessions = SessionReplay(config.environments, config.sandbox.call_timeout_s)
        self.records: list[Record] = []
        self.evaluations: list[NodeResult] = []

    def contradictions(self, tracking: Tracking | None = None, replayed: int | None = None) -> Iterator[Contradiction]:
        """Yield all contradictions, those of the first iteration first.

        With `tracking` MLflow is compared; with `replayed` the update of that iteration, counted from 1, is done again, unless
        something contradicts the records. Raises ConfigError if it cannot be.
        """
        sound = True
        with self._sessions, self._bounds():
            for each in self._all(tracking, replayed):
                sound = False
                yield each
        if replayed is not None and sound:
            yield from self._named("replay", self._replay(replayed), ())

    @property
    def sessions(self) -> Replayed:
        """Return how many sessions of trajectories were played again."""
        return self._sessions.counts

    def _all(self, tracking: Tracking | None, replayed: int | None) -> Iterator[Contradiction]:
        yield from self._named("data", self._data())
        yield from self._named("records", self._read())
        if replayed is not None and not 1 <= replayed <= len(self.records):
            raise ConfigError(f"run {self._run.name!r} has finished iterations 1 to {len(self.records)}, not {replayed}")
        for number, record in enumerate(self.records):
            self._progress(f"iteration {number + 1} of {len(self.records)}")
            yield from self._named(f"iteration {number + 1}", self._iteration(record, self.records[:number]))
        yield from self._evaluations()
        current: list[NodeResult] = []
        yield from self._named("storage", self._into(current, self._run.layout.iteration(len(self.records))))
        results = [*self.evaluations, *current]
        lag = self._config.pipeline.lag
        yield from self._named("storage", leftovers(self._storage, self._run.layout, self.records, results, lag))
        yield from self._named("checkpoints", self._newest())
        if tracking is not None:
            yield from self._named("MLflow", check_tracking(tracking, self._run, self.records, self._storage.settings.option), ())

    def _named(self, where: str, check: Iterator[str], unfit: tuple[type[Exception], ...] = UNFIT) -> Iterator[Contradiction]:
        """Yield the contradictions of a check; what is lost or damaged is one, and ends the check.

        So is an exception, one of `unfit`, that a whole file with wrong fields or columns causes in the check.
        """
        try:
            for what in check:
                yield Contradiction(where, what)
        except (StorageError, BrokenInvariantError) as error:
            yield Contradiction(where, str(error))
        except unfit as error:
            yield Contradiction(where, f"it is damaged: {misfit(error)}")

    def _data(self) -> Iterator[str]:
        stored.check(self._storage, self._run.layout.data)
        for name, digest in sources_of(self._config).items():
            if self._run.sources.get(name, digest) != digest:
                yield f"the source of environments.{name} is not that of the run, so its rewards cannot be checked"

    def _read(self) -> Iterator[str]:
        """Read all records; one after a gap is a contradiction."""
        layout = self._run.layout
        keys = self._storage.list(layout.iterations)
        count = finished_iterations(keys, layout)
        for key in records_among(keys, layout)[count:]:
            yield f"iteration {int(key.split('/')[3]) + 1} has a record, and iteration {count + 1} has none"
        for number in range(count):
            record = read_record(self._storage, self._run, number)
            if record is None or record.iteration != number:
                yield f"the record of iteration {number + 1} is of another iteration"
                return
            self.records.append(record)
            copy = layout.iteration(number).record_copy
            if copy in keys and self._copied(copy) != record:
                yield f"the copy of the record of iteration {number + 1} is another, or damaged"

    def _copied(self, key: str) -> Record | None:
        try:
            return read_kept(self._storage, key, Record)
        except DamagedError:
            return None

    def _iteration(self, record: Record, before: list[Record]) -> Iterator[str]:
        policy, sampler = policy_after(self._run, before), self._sampler(before)
        start, newest = position_after(before), policy if self._config.pipeline.stream else sampler
        yield from Recompute(
            self._storage, self._config, self._run, record, start, newest.updates, self._sessions
        ).contradictions()
        staleness = policy.updates - sampler.updates
        yield from check_update(self._storage, self._config, self._run, record, policy, staleness)

    def _evaluations(self) -> Iterator[Contradiction]:
        made = (policy_after(self._run, []), *(record.policy for record in self.records))
        names = sorted({key.split("/")[3] for key in self._storage.list(self._run.layout.evaluations)})
        for name in names:
            if not (name.isascii() and name.isdecimal()):
                yield Contradiction("evaluations", f"{name!r} is no number of updates")
                continue
            updates = int(name)
            where, policies = (
                f"evaluation after {updates} updates",
                {each.digest: each for each in made if each.updates == updates},
            )
            self._progress(where)
            results: list[NodeResult] = []
            yield from self._named(where, self._into(results, self._run.layout.evaluation(updates)))
            for result in results:
                self.evaluations.append(result)
                yield from self._named(
                    where, check_evaluation(self._storage, self._config, self._run, result, policies, self._sessions)
                )

    def _into(self, found: list[NodeResult], stage: StageLayout) -> Iterator[str]:
        """Add the results of a stage's nodes to `found`."""
        found += results_of(self._storage, stage)
        yield from ()

    def _newest(self) -> Iterator[str]:
        """Yield a contradiction if the newest checkpoint is gone: it is never deleted, whatever the settings say."""
        newest = policy_after(self._run, self.records).checkpoint
        if self._with_checkpoints and newest and not self._storage.exists(f"{newest}/{MANIFEST}"):
            yield f"{newest} is gone, from which the run would continue: it has no {MANIFEST}"

    def _replay(self, number: int) -> Iterator[str]:
        self._progress(f"the update of iteration {number} is done again")
        before = self.records[: number - 1]
        policy, sampler = policy_after(self._run, before), self._sampler(before)
        record, staleness = self.records[number - 1], policy.updates - sampler.updates
        yield from replay(self._storage, self._config, self._run, record, policy, staleness)

    def _sampler(self, before: list[Record]) -> Weights:
        """Return the policy that samples the batch of the iteration after these."""
        return sampler_of(self._run, before, len(before), self._config.pipeline.lag)
