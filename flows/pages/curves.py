"""The learning curve of a run, read while it grows, and as the shapes of a picture in a page."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from nbrl.infra.manifest import PARALLEL
from nbrl.infra.storage import Storage
from nbrl.tasks.runs.history import Record, read_record
from nbrl.tasks.runs.results import evaluations_of
from nbrl.tasks.runs.run import Run

Point = tuple[float, float]
FEW, MANY = 24, 200  # iterations of a small and of a large picture


@dataclass(frozen=True)
class LearningCurve:
    """Success by updates: `rollouts` at the updates before the one that learned from them, `held_out` with its interval."""

    rollouts: Sequence[Point] = ()
    held_out: Mapping[int, tuple[float, float, float]] = field(default_factory=dict)

    @property
    def last(self) -> float:
        """Return the last number of updates, at least 1."""
        return max(1.0, *(x for x, _ in self.rollouts), *self.held_out)


def curve_of(storage: Storage, run: Run, count: int, most: int) -> LearningCurve:
    """Return the curve of a run with so many finished iterations, by at most `most` of them. Raises DamagedError."""
    chosen = range(count) if count <= most else sorted({place * (count - 1) // (most - 1) for place in range(most)})
    rollouts = [
        (float(record.updates - (not record.skipped)), record.metrics["reward/success"])
        for record in _records(storage, run, chosen)
    ]
    held_out = {
        updates: (values["success"], values.get("success_low", values["success"]), values.get("success_high", values["success"]))
        for updates, values in evaluations_of(storage, run).items()
    }
    return LearningCurve(rollouts, held_out)


def success_of(storage: Storage, run: Run, iterations: Iterable[int]) -> dict[int, float]:
    """Return the success of the rollouts of those of the iterations that are finished. Raises DamagedError."""
    return {record.iteration: record.metrics["reward/success"] for record in _records(storage, run, iterations)}


def _records(storage: Storage, run: Run, iterations: Iterable[int]) -> list[Record]:
    with ThreadPoolExecutor(PARALLEL) as pool:
        records = pool.map(lambda number: read_record(storage, run, number), iterations)
        return [record for record in records if record is not None]


@dataclass(frozen=True)
class Picture:
    """A curve in a box of `width` × `height`, whose axes leave `left` and `below` for their words.

    `line` are the points of the rollouts, `dots` those of the held-out evaluations with the ends of their intervals, `ticks` the
    places and numbers of updates.
    """

    width: int
    height: int
    left: int
    below: int
    line: str
    dots: Sequence[tuple[float, float, float, float, str]]
    ticks: Sequence[tuple[float, int]]
    grid: Sequence[tuple[float, float]]


def picture_of(curve: LearningCurve, width: int, height: int, left: int = 4, below: int = 4) -> Picture | None:
    """Return the picture; None of a curve with fewer than two points."""
    if len(curve.rollouts) + len(curve.held_out) < 2:
        return None

    def place(x: float, y: float) -> Point:
        inner = width - left - (12 if left > 10 else 6), height - below - 6
        return round(left + x / curve.last * inner[0], 1), round(6 + (1 - min(1.0, max(0.0, y))) * inner[1], 1)

    dots = [
        (
            *place(updates, success),
            place(0, low)[1],
            place(0, high)[1],
            f"{success:.3f} after {updates} update{'s' * (updates != 1)}",
        )
        for updates, (success, low, high) in sorted(curve.held_out.items())
    ]
    every = max(1, -(-int(curve.last) // 8))
    return Picture(
        width,
        height,
        left,
        below,
        " ".join("{},{}".format(*place(x, y)) for x, y in curve.rollouts),
        dots,
        [(place(updates, 0)[0], updates) for updates in range(0, int(curve.last) + 1, every)],
        [(place(0, y)[1], y) for y in (0.0, 0.5, 1.0)],
    )
