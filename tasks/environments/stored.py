"""The questions, passages and attached files of a run's environments, written below the run when it begins."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.nested import list_in
from nbrl.tasks.environments.questions import SCHEMA
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.reward.rules.code.reference import reference_of
from nbrl.tasks.reward.rules.rule import CODE

SPLITS = ("train", "held_out")
DIGEST = re.compile(r"[0-9a-f]{64}")
TESTED = ("tests", "setup", "entry_points")
FETCHED = "reference"  # has all three in a file that `nbrl data fetch` wrote


class Place(NamedTuple):
    """A table on storage and the SHA-256 of its bytes."""

    key: str
    digest: str


class Contents(NamedTuple):
    """The stored parts of an environment: questions (rows of SCHEMA), none to train on if its weight is 0; whether passages."""

    train: pa.Table
    held_out: pa.Table
    searchable: bool

    @property
    def rules(self) -> set[str]:
        """Return the rules by which answers are scored."""
        return {rule for table in (self.train, self.held_out) for rule in table["rule"].unique().to_pylist()}


def load(environments: Mapping[str, Environment]) -> dict[str, Tables]:
    """Return what every environment gives. Raises ConfigError if that cannot be had."""
    return {name: environment.load(f"environments.{name}") for name, environment in environments.items()}


def contents_of(environments: Mapping[str, Environment], loaded: Mapping[str, Tables]) -> dict[str, Contents]:
    """Return the contents of each environment, from what `load` returned."""
    return {
        name: Contents(
            loaded[name].train if environment.weight else SCHEMA.empty_table(),
            loaded[name].held_out,
            len(loaded[name].corpus) > 0,
        )
        for name, environment in environments.items()
    }


def mixed(environments: Mapping[str, Environment], loaded: Mapping[str, Tables], split: str) -> pa.Table:
    """Return the questions of a split of all environments, one after another; with several environments their ids begin with its
    name.

    An environment of weight 0 has no training questions.
    """
    parts = []
    for name, environment in environments.items():
        if split == "train" and not environment.weight:
            continue
        table = loaded[name].split(split)
        if len(environments) > 1:
            ids = pc.binary_join_element_wise(name, table["id"], ":")
            table = table.set_column(SCHEMA.get_field_index("id"), SCHEMA.field("id"), ids)
        names = pa.array([name] * len(table), pa.string())
        parts.append(table.set_column(SCHEMA.get_field_index("environment"), SCHEMA.field("environment"), names))
    return pa.concat_tables(parts) if parts else SCHEMA.empty_table()


def digests(storage: Storage, layout: DataLayout) -> dict[str, str] | None:
    """Return the SHA-256 of each table by its key; None unless all that the environments gave is on storage.

    Raises DamagedError where one is none: an index of passages is kept in a folder of that name.
    """
    if storage.exists(layout.digests):
        digests = storage.read_json(layout.digests)
        if strange := [key for key, digest in digests.items() if not (isinstance(digest, str) and DIGEST.fullmatch(digest))]:
            raise DamagedError(f"{storage.uri(layout.digests)} has no SHA-256 of {strange[0]}; bring it back from a copy")
        return digests
    return None


def write(
    environments: Mapping[str, Environment],
    storage: Storage,
    layout: DataLayout,
    loaded: Mapping[str, Tables] | None = None,
    copied: str = "",
) -> None:
    """Write the tables and attached files, then their digests, unless they are there.

    `loaded` is what `load` returned; without it they are copied from the folder `copied` of another run, or the environments are
    loaded. Raises ConfigError.
    """
    if storage.exists(layout.digests):
        return
    if loaded is None and copied:
        _copy(environments, storage, DataLayout(copied), layout)
        return
    loaded = load(environments) if loaded is None else loaded
    tables = {layout.corpus(name): tables.corpus for name, tables in loaded.items() if len(tables.corpus)}
    tables |= {layout.split(split): mixed(environments, loaded, split) for split in SPLITS}
    for each in loaded.values():
        for digest, file in each.attached.items():
            data = file if isinstance(file, bytes) else file.read_bytes()
            if sha256(data) != digest:
                raise ConfigError(f"the attached file {file!s} was changed while the run began; try again")
            storage.write_bytes(layout.attached(digest), data)
    storage.create_json(layout.digests, {key: storage.write_table(key, table) for key, table in tables.items()})


def _copy(environments: Mapping[str, Environment], storage: Storage, source: DataLayout, target: DataLayout) -> None:
    """Copy what another run has of these environments."""
    tables: dict[str, pa.Table] = {}
    for split in SPLITS:
        table = read(storage, source, split)
        table = table.filter(pc.is_in(table["environment"], pa.array(list(environments))))
        tables[target.split(split)] = table
        for digest in {file["digest"] for files in table["files"].to_pylist() for file in files}:
            storage.write_bytes(target.attached(digest), storage.read_bytes(source.attached(digest), digest))
    for name, place in corpora(storage, source, environments).items():
        tables[target.corpus(name)] = storage.read_table(place.key, place.digest)
    storage.create_json(target.digests, {key: storage.write_table(key, table) for key, table in tables.items()})


def read(storage: Storage, layout: DataLayout, split: str) -> pa.Table:
    """Return the questions that `write` wrote. Raises DamagedError if they are not what was written."""
    written = digests(storage, layout)
    if written is None:
        raise MissingError(f"{storage.uri(layout.digests)} does not exist")
    return _read(storage, layout, split, written)


def _read(storage: Storage, layout: DataLayout, split: str, written: Mapping[str, str]) -> pa.Table:
    key = layout.split(split)
    if key not in written:
        raise DamagedError(f"{storage.uri(layout.digests)} has no SHA-256 of {key}; bring it back from a copy")
    return storage.read_table(key, written[key])


def contents(storage: Storage, layout: DataLayout, environments: Mapping[str, Environment]) -> dict[str, Contents] | None:
    """Return the contents of each environment, from storage alone; None unless all of it is there.

    Raises DamagedError if a table is not what was written.
    """
    if (written := digests(storage, layout)) is None:
        return None
    train, held_out = [_read(storage, layout, split, written) for split in SPLITS]
    with_passages = _corpora(layout, environments, written)

    def of(name: str, table: pa.Table) -> pa.Table:
        return table.filter(pc.equal(table["environment"], name))

    return {name: Contents(of(name, train), of(name, held_out), name in with_passages) for name in environments}


def corpora(storage: Storage, layout: DataLayout, environments: Mapping[str, Environment]) -> dict[str, Place]:
    """Return where the passages of each environment are that has any."""
    return _corpora(layout, environments, digests(storage, layout) or {})


def _corpora(layout: DataLayout, environments: Mapping[str, Environment], written: Mapping[str, str]) -> dict[str, Place]:
    keys = {name: layout.corpus(name) for name in environments}
    return {name: Place(key, written[key]) for name, key in keys.items() if key in written}


def check(storage: Storage, layout: DataLayout) -> None:
    """Raises DamagedError if a table or an attached file is not what was written."""
    for key, digest in (digests(storage, layout) or {}).items():
        storage.read_table(key, digest)
    files = [files for split in SPLITS for files in read(storage, layout, split)["files"].to_pylist()]
    for digest in sorted({file["digest"] for each in files for file in each}):
        storage.read_bytes(layout.attached(digest), digest)


def tested_column(where: str, table: pa.Table, columns: Mapping[str, str], rules: Sequence[str]) -> list[str]:
    """Return the reference of each row by the rule code; empty for other rows. Raises ConfigError."""
    tests, setup, entry_points = (_values(table, columns.get(name, name)) for name in TESTED)
    if columns.get(TESTED[0], TESTED[0]) not in table.column_names:
        if FETCHED not in table.column_names:
            hint = did_you_mean(TESTED[0], table.column_names)
            raise ConfigError(f"{where} lacks the column 'tests', which the rule code needs; {hint} columns.tests names it")
        return [str(value or "") if rule == CODE else "" for value, rule in zip(_values(table, FETCHED), rules, strict=True)]
    found = []
    for place, rule in enumerate(rules):
        try:
            given = (_strings(tests[place]), str(setup[place] or ""), _strings(entry_points[place])) if rule == CODE else None
        except TypeError as error:
            raise ConfigError(
                f"{where}: row {place} has {error} in its tests or entry points; both are lists of strings"
            ) from error
        found.append(reference_of(*given) if given else "")
    return found


def _values(table: pa.Table, name: str) -> list[Any]:
    return list(table[name].to_pylist()) if name in table.column_names else [None] * len(table)


def _strings(value: Any) -> list[str]:
    """Return a list of strings, as text too; a single one is a list of one, nothing an empty one. Raises TypeError for others."""
    values = list_in(value) or [value] if isinstance(value, str) else value or []
    for each in values if isinstance(values, list) else [values]:
        if not isinstance(each, str):
            raise TypeError(repr(each)[:80])
    return list(values)
