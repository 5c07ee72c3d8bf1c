"""The questions, passages and attached files of a run's environments, written below the run when it begins."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.questions import SCHEMA, completed
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import DataLayout

SPLITS = ("train", "held_out")


class Place(NamedTuple):
    """A table on storage and the SHA-256 of its bytes."""

    key: str
    digest: str


def load(environments: Mapping[str, Environment]) -> dict[str, Tables]:
    """What every environment gives. Raises ConfigError if that cannot be had, or two environments name one question alike."""
    loaded = {name: environment.load(f"environments.{name}") for name, environment in environments.items()}
    if "math" in rules(loaded) and find_spec("math_verify") is None:
        raise ConfigError("the rule math needs the package math-verify: pip install 'nbrl[math]'")
    return loaded


def rules(loaded: Mapping[str, Tables]) -> set[str]:
    """The rules by which answers to any of the questions are scored."""
    return {rule for tables in loaded.values() for split in SPLITS for rule in tables.split(split)["rule"].unique().to_pylist()}


def mixed(environments: Mapping[str, Environment], loaded: Mapping[str, Tables], split: str) -> pa.Table:
    """The questions of a split of all environments, one after another; with several environments their ids begin with its name.

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


def write(environments: Mapping[str, Environment], storage: Storage, layout: DataLayout) -> None:
    """Write the tables and attached files, then their digests, unless they are there."""
    if storage.exists(layout.digests):
        return
    earlier = [layout.corpus(), *(layout.split(split) for split in SPLITS)]
    if all(storage.exists(key) for key in earlier):  # releases before this one wrote no digests
        storage.create_json(layout.digests, {key: sha256(storage.read_bytes(key)) for key in earlier})
        return
    loaded = load(environments)
    tables = {layout.corpus(name): tables.corpus for name, tables in loaded.items() if len(tables.corpus)}
    tables |= {layout.split(split): mixed(environments, loaded, split) for split in SPLITS}
    for each in loaded.values():
        for digest, path in each.attached.items():
            data = path.read_bytes()
            if sha256(data) != digest:
                raise ConfigError(f"the attached file {path} was changed while the run began; try again")
            storage.write_bytes(layout.attached(digest), data)
    storage.create_json(layout.digests, {key: storage.write_table(key, table) for key, table in tables.items()})


def read(storage: Storage, layout: DataLayout, split: str) -> pa.Table:
    """The questions that `write` wrote. Raises DamagedError if they are not what was written."""
    key = layout.split(split)
    return completed(storage.read_table(key, storage.read_json(layout.digests)[key]))


def corpora(storage: Storage, layout: DataLayout, environments: Mapping[str, Environment]) -> dict[str, Place]:
    """Where the passages of each environment are that has any."""
    digests = storage.read_json(layout.digests)
    keys = {name: layout.corpus(name) for name in environments}
    if layout.corpus() in digests:  # runs that earlier releases began have one environment
        keys = dict.fromkeys(environments, layout.corpus())
    return {name: Place(key, digests[key]) for name, key in keys.items() if key in digests}


def check(storage: Storage, layout: DataLayout) -> None:
    """Raises DamagedError if a table or an attached file is not what was written."""
    for key, digest in storage.read_json(layout.digests).items():
        storage.read_table(key, digest)
    files = [files for split in SPLITS for files in read(storage, layout, split)["files"].to_pylist()]
    for digest in sorted({file["digest"] for each in files for file in each}):
        storage.read_bytes(layout.attached(digest), digest)
