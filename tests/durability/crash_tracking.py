"""An MLflow of one file, whose every write is a step at which a process can die."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

EMPTY: dict[str, Any] = {"tags": {}, "metrics": {}, "models": {}, "traces": [], "tables": {}, "files": [], "status": ""}


class FileTracking:
    """What `Books` and the audit need of `Tracking`."""

    def __init__(self, path: Path, step: Callable[[], None] = lambda: None) -> None:
        self._path, self._step = path, step
        self.uri = str(path)

    def _read(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else json.loads(json.dumps(EMPTY))

    def _write(self, run: dict[str, Any]) -> None:
        self._step()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(run))
        new.replace(self._path)

    def start_run(self, name: str, params: Mapping[str, object], tags: Mapping[str, str]) -> str:
        run = self._read()
        self._write(run | {"status": "RUNNING", "tags": run["tags"] | tags})
        return name

    def find_run(self, name: str, tags: Mapping[str, str]) -> bool:
        return self._path.exists()

    def start_over(self) -> None:
        self._write(EMPTY)

    def tag(self, name: str) -> str:
        return str(self._read()["tags"].get(name, ""))

    def set_tag(self, name: str, value: str) -> None:
        run = self._read()
        run["tags"][name] = value
        self._write(run)

    def history(self, metric: str) -> list[tuple[int, float]]:
        return [(step, value) for step, value in self._read()["metrics"].get(metric, [])]

    def steps(self, metric: str) -> set[int]:
        return {step for step, _ in self.history(metric)}

    def traced(self, tags: Mapping[str, str]) -> set[str]:
        return {name for name, given in self._read()["traces"] if given.items() >= tags.items()}

    def has_checkpoint(self, name: str) -> bool:
        return name in self._read()["models"]

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
        run = self._read()
        for name, value in metrics.items():
            run["metrics"].setdefault(name, []).append((step, value))
        self._write(run)

    def log_checkpoint(self, name: str, uri: str, metrics: Mapping[str, float], step: int) -> str:
        run = self._read()
        assert name not in run["models"], f"{name} is logged twice"
        run["models"][name] = uri
        self._write(run)
        self.log_metrics(metrics, step)
        return name

    def log_trace(self, name: str, tags: Mapping[str, str], **rest: object) -> str:
        run = self._read()
        assert [name, dict(tags)] not in run["traces"], f"{name} is traced twice"
        run["traces"].append([name, dict(tags)])
        self._write(run)
        return name

    def column(self, table: str, name: str) -> list[Any]:
        return list(self._read()["tables"].get(table, {}).get(name, []))

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        run = self._read()
        assert name not in run["tables"], f"table {name} is logged twice"
        run["tables"][name] = {key: list(values) for key, values in columns.items()}
        self._write(run)

    def log_file(self, path: Path) -> None:
        run = self._read()
        self._write(run | {"files": sorted({*run["files"], path.name})})

    def end(self, status: str = "FINISHED") -> None:
        self._write(self._read() | {"status": status})
