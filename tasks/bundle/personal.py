"""What of a run is of a user or a machine: settings that are left out when it is published, and what was recorded."""

import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from nbrl.infra.arrow_files import read_parquet
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import HOME, storage_of
from nbrl.infra.storage import StorageSettings
from nbrl.tasks.environments.environment import Environment
from nbrl.tasks.runs.config import RunConfig

FILES = ("train", "held_out", "corpus")  # of an environment
HOMES = re.compile(
    r"(?:(?<![\w./-])|(?<=://)|(?<=\s-[A-Za-z]))(?:/home/|/root/|/Users/)[^\s\"'\\]{1,80}"
    r"|\b[A-Za-z]:\\{1,2}Users\\{1,2}[^\s\"'\\]{1,80}"
)
FOLDER = re.compile(r"(?:/(?!opt/program/)\S|[A-Za-z]:\\)")  # how a setting begins that names one of a machine
SHORTEST_HOST = 4  # shorter names are words


def impersonal(config: RunConfig) -> RunConfig:
    """Return the settings without folders and servers of the user's: where results lie, and where models and questions are."""
    defaults = RunConfig.model_fields
    return config.model_copy(
        update={
            "home": HOME,
            "storage": StorageSettings(root=storage_of(HOME)),
            "tracking": defaults["tracking"].get_default(call_default_factory=True),
            "nodes": defaults["nodes"].get_default(call_default_factory=True),
            "ray": defaults["ray"].get_default(call_default_factory=True),
            "policy": config.policy.model_copy(update={"path": Path(config.policy.path).name}),
            "engine": config.engine.model_copy(update={"environment": EngineSettings.model_fields["environment"].get_default()}),
            "sandbox": config.sandbox.model_copy(update={"environment": None}),
            "environments": {name: _without_folders(each) for name, each in config.environments.items()},
        }
    )


def _without_folders(environment: Environment) -> Environment:
    """Return an environment whose files are named without their folders: the run has a copy of what they hold."""
    files = {name: value for name in FILES if isinstance(value := getattr(environment, name, None), str | Path)}
    return environment.model_copy(update={name: Path(value).name for name, value in files.items()})


def folders_in(settings: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings that name a folder of a machine, by their keys."""
    if isinstance(settings, dict):
        for name, value in settings.items():
            yield from folders_in(value, f"{key}.{name}" if key else str(name))
    elif isinstance(settings, list):
        for value in settings:
            yield from folders_in(value, key)
    elif isinstance(settings, str) and FOLDER.match(settings):
        yield key, settings[:80]


def personal_in(folder: Path, hosts: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the files that name folders of a user, or one of these hosts, with what they name."""
    whole = [re.escape(host) for host in hosts if len(host) >= SHORTEST_HOST]
    named = re.compile(rf"(?<![\w.-])(?:{'|'.join(whole)})(?![\w-])") if whole else None
    mine = [f"{place}/" for place, least in ((Path.home(), 2), (Path.cwd(), 3)) if len(place.parts) >= least]  # /tmp is anyone's
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.suffix in (".safetensors", ".png", ".lock"):
            continue
        for text in _texts(path):
            found = HOMES.search(text) or (named and named.search(text))
            if what := next((place for place in mine if place in text), found[0][:80] if found else ""):
                yield str(path.relative_to(folder)), what
                break


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".parquet":
        for row in read_parquet(path).to_pylist():
            yield json.dumps(row, default=str, ensure_ascii=False)
    else:
        with suppress(UnicodeDecodeError):
            yield path.read_text()
