"""The same question in other evaluations of a run, and in other runs of the storage, found by the ids in small indexes."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from nbrl.flows.pages.reading import KINDS, RunReading, ShownStage, ShownTrajectory
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import PARALLEL
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import run_names
from nbrl.tasks.runs.trajectories import read_trajectories

STAGES, RUNS = 12, 30  # in which a question is looked for at most: of one run, and other runs


@dataclass(frozen=True)
class CopiedQuestion:
    """A trajectory with the same id in another stage; `success` is None where it was not scored."""

    kind: str
    name: str
    stage: ShownStage
    success: float | None


def in_the_run(run: RunReading, found: ShownTrajectory) -> list[CopiedQuestion]:
    """Return those in the newest evaluations of the run, or in its newest iterations, the one that is shown among them."""
    alike = [stage for stage in run.stages() if _kind(stage) == _kind(found.stage)]
    shown = [(run, stage) for stage in alike[:STAGES]]
    if found.stage not in alike[:STAGES]:
        shown.append((run, found.stage))
    return _found(shown, found.trajectory.id, lambda _: True)[::-1]


def in_other_runs(storage: Storage, run: RunReading, found: ShownTrajectory) -> tuple[list[CopiedQuestion], int, int]:
    """Return those in the newest such stage of other runs and evaluations, how many of these were looked at, and how many there
    are.
    """
    names = [(kind, name) for kind in KINDS for name in run_names(storage.list(kind)) if (kind, name) != (run.kind, run.name)]
    shown: list[tuple[RunReading, ShownStage]] = []
    for kind, name in names[:RUNS]:
        other = RunReading(storage, kind, name)
        shown += islice(((other, stage) for stage in other.stages() if _kind(stage) == _kind(found.stage)), 1)

    def same(table: str) -> bool:
        return found.trajectory.question in read_trajectories(storage, table, found.trajectory.id)["question"].to_pylist()

    return _found(shown, found.trajectory.id, same), len(names[:RUNS]), len(names)


def _found(places: Sequence[tuple[RunReading, ShownStage]], identity: str, same: Callable[[str], bool]) -> list[CopiedQuestion]:
    """Return those of the places that have the id; one that is damaged has none."""

    def look(place: tuple[RunReading, ShownStage]) -> CopiedQuestion | None:
        run, stage = place
        try:
            for table in () if stage.unfinished else stage.tables:
                if identity in run.storage.read_index(table)["id"].to_pylist() and same(table):
                    success = run.scored(table).get(identity, {}).get("success")
                    return CopiedQuestion(run.kind, run.name, stage, success)
        except (DamagedError, MissingError, LookupError):
            pass
        return None

    with ThreadPoolExecutor(PARALLEL) as pool:
        found: Iterable[CopiedQuestion | None] = pool.map(look, places)
        return [copy for copy in found if copy is not None]


def _kind(stage: ShownStage) -> str:
    return stage.slug.partition("-")[0]
