"""An MLflow of one file, whose every write is a step at which a process can die."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nbrl.infra.tracking_models import DELETED, URI, LoggedModel, Version
from nbrl.infra.tracking_traces import Assessments, Dataset, Traced

EMPTY: dict[str, Any] = {
    "tags": {},
    "params": {},
    "metrics": {},
    "models": {},
    "steps": {},
    "deleted": [],
    "of_models": {},
    "versions": [],
    "traces": [],
    "assessed": {},
    "datasets": [],
    "tables": {},
    "files": [],
    "status": "",
}


class FileTracking:
    """What `Books` and the audit need of `Tracking`."""

    def __init__(self, path: Path, step: Callable[[], None] = lambda: None) -> None:
        self._path, self._step = path, step
        self.uri = str(path)

    def read(self) -> dict[str, Any]:
        return json.loads(self._path.read_text()) if self._path.exists() else json.loads(json.dumps(EMPTY))

    def write(self, run: dict[str, Any]) -> None:
        self._step()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(run))
        new.replace(self._path)

    @property
    def models(self) -> "FileModels":
        return FileModels(self)

    @property
    def traces(self) -> "FileTraces":
        return FileTraces(self)

    @property
    def datasets(self) -> "FileDatasets":
        return FileDatasets(self)

    @property
    def machine(self) -> "FileMachine":
        return FileMachine()

    def start_run(
        self, name: str, params: Mapping[str, object], identity: Mapping[str, str], facts: Mapping[str, str], *rest: object
    ) -> str:
        run = self.read()
        self.write(run | {"status": "RUNNING", "params": {**params}, "tags": {**run["tags"], **identity, **facts}})
        return name

    def find_run(self, name: str, *tags: Mapping[str, str]) -> bool:
        return self._path.exists()

    def id_of(self, name: str, *tags: Mapping[str, str]) -> str:
        return name if self._path.exists() else ""

    def adopt(self, tags: Mapping[str, str]) -> None:
        """There are no other runs in the file."""

    def start_over(self) -> None:
        self.write({**EMPTY, "versions": self.read()["versions"]})  # the registry stays

    def tag(self, name: str) -> str:
        return str(self.read()["tags"].get(name, ""))

    def set_tag(self, name: str, value: str) -> None:
        run = self.read()
        run["tags"][name] = value
        self.write(run)

    def history(self, metric: str) -> list[tuple[int, float]]:
        return [(step, value) for step, value in self.read()["metrics"].get(metric, [])]

    def log_metrics(
        self, metrics: Mapping[str, float], step: int, time_s: float | None = None, model: LoggedModel | None = None
    ) -> None:
        run = self.read()
        for name, value in metrics.items():
            points = run["metrics"].setdefault(name, [])
            if [step, value] in points:  # MLflow's database keeps a repeated point once
                continue
            points.append((step, value))
            if model:
                run["of_models"].setdefault(model.id, []).append(name)
        self.write(run)

    def tables(self, folder: str | None = None) -> set[str]:
        return {name for name in self.read()["tables"] if name.rpartition("/")[0] == (folder or "")}

    def column(self, table: str, name: str) -> list[Any]:
        return list(self.read()["tables"].get(table, {}).get(name, []))

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        """A table that is there grows, as in MLflow."""
        run = self.read()
        there = run["tables"].setdefault(name, {})
        rows, more = (set(map(str, zip(*table.values(), strict=True))) for table in (there, columns))
        assert rows.isdisjoint(more), f"rows of table {name} are logged twice"
        for key, values in columns.items():
            there[key] = [*there.get(key, []), *values]
        self.write(run)

    def log_file(self, path: Path) -> None:
        self._add_file(path.name)

    def log_text(self, text: str, name: str) -> None:
        self._add_file(name)

    def _add_file(self, name: str) -> None:
        run = self.read()
        self.write(run | {"files": sorted({*run["files"], name})})

    def end(self, status: str = "FINISHED", reason: str = "", ended: float | None = None) -> None:
        run = self.read()
        self.write(run | {"status": status, "tags": run["tags"] | ({"nbrl.ended": reason} if reason else {})})


class FileModels:
    def __init__(self, run: FileTracking) -> None:
        self._run = run

    def of_run(self) -> dict[int, LoggedModel]:
        run = self._run.read()
        return {run["steps"][name]: LoggedModel(name, uri, name in run["deleted"]) for name, uri in run["models"].items()}

    def log(self, name: str, uri: str, step: int, tags: Mapping[str, str]) -> LoggedModel:
        run = self._run.read()
        assert name not in run["models"], f"{name} is logged twice"
        run["models"][name], run["steps"][name] = uri, step
        self._run.write(run)
        return LoggedModel(name, uri, False)

    def place(self, model: LoggedModel, uri: str, deleted: bool) -> LoggedModel:
        placed, run = LoggedModel(model.id, uri, deleted), self._run.read()
        if placed != model:
            run["models"][model.id] = uri
            self._run.write(run | {"deleted": sorted({*run["deleted"]} - {model.id} | ({model.id} if deleted else set()))})
        return placed

    def versions(self, registered: str) -> list[Version]:
        return [Version(each["number"], each["tags"], frozenset(each["aliases"])) for each in self._run.read()["versions"]]

    def register(self, registered: str, model: LoggedModel, tags: Mapping[str, str], about: str) -> str:
        run = self._run.read()
        assert model.uri not in [each["tags"]["uri"] for each in run["versions"]], f"{model.uri} is registered twice"
        run["versions"].append({"number": str(len(run["versions"]) + 1), "tags": {"uri": model.uri, **tags}, "aliases": []})
        self._run.write(run)
        return str(len(run["versions"]))

    def tag_version(self, registered: str, number: str, name: str, value: str) -> None:
        run = self._run.read()
        run["versions"][int(number) - 1]["tags"][name] = value
        self._run.write(run)

    def place_version(self, registered: str, version: Version, uri: str, deleted: bool, about: str) -> None:
        run = self._run.read()
        tags = {name: value for name, value in version.tags.items() if name != DELETED}
        placed = tags | {URI: uri} | ({DELETED: "true"} if deleted else {})
        if placed != version.tags:
            run["versions"][int(version.number) - 1]["tags"] = placed
            self._run.write(run)

    def set_alias(self, registered: str, alias: str, number: str) -> None:
        run = self._run.read()
        for each in run["versions"]:
            each["aliases"] = sorted({*each["aliases"], alias} if each["number"] == number else {*each["aliases"]} - {alias})
        self._run.write(run)


class FileTraces:
    def __init__(self, run: FileTracking) -> None:
        self._run = run

    def there(self, tags: Mapping[str, str]) -> dict[str, Traced]:
        run = self._run.read()
        return {
            name: Traced(f"{name} {number}", frozenset(run["assessed"].get(f"{name} {number}", ())))
            for number, (name, given) in enumerate(run["traces"])
            if given.items() >= tags.items()
        }

    def log(self, name: str, tags: Mapping[str, str], **rest: object) -> Traced:
        run = self._run.read()
        assert [name, dict(tags)] not in run["traces"], f"{name} is traced twice"
        run["traces"].append([name, dict(tags)])
        self._run.write(run)
        return Traced(f"{name} {len(run['traces']) - 1}", frozenset())

    def assess(self, trace: Traced, assessments: Assessments) -> None:
        run = self._run.read()
        for name in (*assessments.expected, *assessments.feedback):
            if name not in trace.assessed:
                run["assessed"].setdefault(trace.id, []).append(name)
                self._run.write(run)


class FileDatasets:
    def __init__(self, run: FileTracking) -> None:
        self._run = run

    def names(self) -> set[str]:
        return set(self._run.read()["datasets"])

    def log(self, datasets: Sequence[Dataset]) -> None:
        run = self._run.read()
        assert not {each.name for each in datasets} & set(run["datasets"])
        self._run.write(run | {"datasets": sorted([*run["datasets"], *(each.name for each in datasets)])})


class FileMachine:
    def watch(self) -> None:
        """The machine of a test is of no interest."""
