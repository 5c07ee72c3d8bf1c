"""A table with faults in the working folder, to be repaired by code and checked as a file: dates, numbers, doubles, gaps.

`{kind: own, place: "nbrl.tasks.environments.worlds.repair:Repair"}`
"""

import csv
import io
import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, Tasks, Trajectory

DAMAGED, REPAIRED = "sales.csv", "repaired.csv"
HEADER = ("date", "shop", "amount")
SHOPS = ("north", "south", "east", "west")
HELD_OUT = 1 << 20
FAULTS = {
    "dates": "Some dates are written day.month.year; write all as year-month-day.",
    "numbers": "Some amounts have a comma for the point, or the sign EUR; write all as 12.50.",
    "doubles": "Some rows are there twice, one after the other; keep the first.",
    "names": "Some shops have capitals or spaces around them; write all in small letters without spaces.",
}
Row = tuple[str, str, str]


def clean_rows(seed: int) -> list[Row]:
    """Return the rows as they should be."""
    rng = random.Random(f"sales {seed}")
    count, rows = rng.randint(12, 30), []
    for number in range(count):
        date = f"2025-{1 + number // 28:02d}-{1 + number % 28:02d}"
        rows.append((date, rng.choice(SHOPS), f"{rng.randint(100, 9999) / 100:.2f}"))
    return rows


def faults_of(seed: int) -> list[str]:
    """Return the faults of a table, two or three of FAULTS."""
    rng = random.Random(f"faults {seed}")
    return sorted(rng.sample(sorted(FAULTS), rng.randint(2, 3)))


def damaged_rows(seed: int) -> list[Row]:
    """Return the rows with their faults; each fault is in there at least once."""
    rng, rows = random.Random(f"damage {seed}"), list[Row]()
    faults = faults_of(seed)
    for number, (date, shop, amount) in enumerate(clean_rows(seed)):
        hit = {fault for fault in faults if rng.random() < 0.3} | ({faults[number]} if number < len(faults) else set())
        if "dates" in hit:
            year, month, day = date.split("-")
            date = f"{day}.{month}.{year}"
        if "numbers" in hit:
            amount = rng.choice([amount.replace(".", ","), f"{amount} EUR"])
        if "names" in hit:
            shop = rng.choice([shop.upper(), f" {shop}", f"{shop.title()} "])
        rows += [(date, shop, amount)] * (2 if "doubles" in hit else 1)
    return rows


def written(rows: Sequence[Row]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADER, *rows])
    return text.getvalue().encode()


class Repair(Tasks):
    """Tables by seed. It needs no session: the working folder is the state, and the file that is made is scored."""

    def __init__(self, seed: int = 0, train: int = 512, held_out: int = 128) -> None:
        self._counts = {"train": (seed, train), "held_out": (seed + HELD_OUT, held_out)}

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        first, count = self._counts[split]
        for seed in range(first, first + count):
            orders = " ".join(FAULTS[fault] for fault in faults_of(seed))
            text = f"Repair {DAMAGED} and write it as {REPAIRED}, with the same header and order. {orders} Then submit 'done'."
            files = [(DAMAGED, written(damaged_rows(seed)))]
            yield Question(text, {"seed": seed}, ability="repair", files=files, collect=[REPAIRED])

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay for the share of rows at their place, and call only the whole table a success."""
        rows = clean_rows(reference["seed"])
        made = _read(trajectory.files.get(REPAIRED, b""))
        right = sum(one == list(other) for one, other in zip(made[1:], rows, strict=False))
        whole = made == [list(HEADER), *map(list, rows)]
        return Score(success=whole, value=1.0 if whole else 0.5 * right / len(rows), facets={"rows": right / len(rows)})

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        steps = {
            "dates": "    if '.' in d: d = '-'.join(reversed(d.split('.')))",
            "numbers": "    a = a.replace(',', '.').replace(' EUR', '')",
            "names": "    s = s.strip().lower()",
        }
        faults = faults_of(question.reference["seed"]) if good else rng.sample(sorted(FAULTS), 1)
        kept = "    if [d, s, a] not in out[-1:]: out.append([d, s, a])" if "doubles" in faults else "    out.append([d, s, a])"
        code = [
            "import csv",
            f"rows = list(csv.reader(open('{DAMAGED}')))",
            "out = rows[:1]",
            "for d, s, a in rows[1:]:",
            *(steps[fault] for fault in faults if fault in steps),
            kept,
            f"with open('{REPAIRED}', 'w', newline='') as file: csv.writer(file, lineterminator='\\n').writerows(out)",
        ]
        return [("repair it row by row", "\n".join(code)), ("that is all", "submit_final_answer('done')")]


def _read(data: bytes) -> list[list[str]]:
    """Return the rows of a file that a model made; none where it is no table."""
    try:
        return list(csv.reader(io.StringIO(data.decode()), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return []
