"""Files of questions for tests."""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.tasks.environments.files import read_questions

ROWS = [{"problem": "What is 6 × 7?", "solution": "42"}, {"problem": "What, then, is 7 × 7?\n", "solution": "49"}]
COLUMNS = {"question": "problem", "answers": "solution"}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        case ".json":
            path.write_text(json.dumps(rows))
        case ".csv" | ".tsv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
                writer.writeheader()
                writer.writerows(rows)
        case _:
            pq.write_table(pa.Table.from_pylist(rows), path)
    return path


FOUND = [{"question": "q0?", "answers": ["0"]}, {"question": "q1?", "answers": ["1"]}]


def questions(path: Path, **columns: str) -> list[dict[str, Any]]:
    return read_questions(path, columns, "qa").select(["question", "answers"]).to_pylist()
