"""A run's folder as a stranger may write it: any byte, value, file or name of it changed, its digests made right again."""

import hashlib
import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.infra.parse import SEAL, seal

BOMBS = [
    *(
        b"",
        b"{}",
        b"[]",
        b"null",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b"1" * 10_000,
        b'{"sha256": null}',
        b'{"iteration": 1e999}',
    ),
    *(b"\xff\xfe\x00", b"PAR1" * 3, b"\x00" * 5_000_000),
]
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 10**30, 1.5, 1e308, float("nan"), float("inf")),
    *("", " ", "x", "é\u202e", "\ud800", "\x1b[2J\x00", "a" * 100_000, "1e999", "NaN"),
    *("../../mine", "runs/mine", "runs/mine/run.json", "/etc/passwd", "runs/r/../mine/run.json"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [{}] * 1_000),
]
NAMES = ["x", "000000", "record.json", "a\nb", "\x1b[2J", "é\udcff", "x" * 200, "update-1.json", "round-0", "e0009-abcdef"]


def files(run: Path) -> list[Path]:
    return sorted(path for path in run.rglob("*") if path.is_file() and not path.is_symlink())


def _run(path: Path) -> Path:
    return next(parent for parent in path.parents if parent.parent.name == "runs")


def change(run: Path, victims: list[Path], draw: random.Random) -> str:
    """Change something in the folder, and say what."""
    kinds: list[Callable[[Path, Path, random.Random], str]] = [_bytes, _bomb, _value, _value, _value, _table, _link, _odd, _name]
    path = draw.choice(files(run))
    said = draw.choice(kinds)(path, draw.choice(victims), draw)
    return f"{path.relative_to(run)}: {said}"


def _bytes(path: Path, victim: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place = draw.randrange(len(data) + 1)
    how = draw.choice(["flipped", "cut", "twice", "filled"])
    match how:
        case "flipped":
            data[place : place + 1] = bytes([draw.randrange(256)])
        case "cut":
            del data[place:]
        case "twice":
            data[place:place] = data
        case "filled":
            data[place:place] = draw.randbytes(draw.randrange(1, 100))
    _replace(path, bytes(data), right=draw.random() < 0.5)
    return f"{how} at {place}"


def _bomb(path: Path, victim: Path, draw: random.Random) -> str:
    bomb = draw.choice(BOMBS)
    _replace(path, bomb, right=draw.random() < 0.5)
    return f"holds {bomb[:20]!r} ({len(bomb)} bytes)"


def _value(path: Path, victim: Path, draw: random.Random) -> str:
    """Another value, a further key, or one key less, somewhere in a file of JSON of the run."""
    run = _run(path)
    path = draw.choice([each for each in files(run) if each.suffix == ".json"])
    try:
        fields = json.loads(path.read_bytes())
        place, key = draw.choice([*_places(fields)])
    except (ValueError, RecursionError, IndexError, TypeError):  # it was changed before
        return "as it was"
    odd = draw.choice(ODD)
    how = draw.choice(["is", "is", "is", "has not", "has besides"])
    if how == "is":
        place[key] = odd
    elif how == "has not":
        del place[key]
    elif isinstance(place, dict):
        place["further"] = odd
    else:
        place.append(odd)
    sealed = isinstance(fields, dict) and fields.pop(SEAL, None) is not None
    _replace(path, seal(fields) if sealed else json.dumps(fields).encode(), right=True)
    return f"{path.relative_to(run)}: {key!r} {how} {repr(odd)[:60]}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each part of a value as the object or list that holds it, and its key there."""
    for key in range(len(value)) if isinstance(value, list) else list(value):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _table(path: Path, victim: Path, draw: random.Random) -> str:
    """Another column, type, number of rows, or values of one that are odd, in a table of the run."""
    run = _run(path)
    path = draw.choice([each for each in files(run) if each.suffix == ".parquet"])
    try:
        table = pq.read_table(path)
    except pa.ArrowException:  # it was changed before
        return "as it was"
    if not table.column_names:
        return "as it was"
    name = draw.choice(table.column_names)
    at = table.column_names.index(name)
    how = draw.choice(["none", "dropped", "renamed", "texts", "numbers", "nulls", "no rows", "twice", "odd"])
    match how:
        case "none":
            table = pa.table({})
        case "dropped":
            table = table.drop_columns([name])
        case "renamed":
            table = table.rename_columns([each if each != name else "other" for each in table.column_names])
        case "texts":
            table = table.set_column(at, name, pa.array([draw.choice(["", "../x", "\x1b[2J"])] * len(table)))
        case "numbers":
            table = table.set_column(at, name, pa.array([draw.choice([-1.0, 1e308, float("nan")])] * len(table)))
        case "nulls":
            table = table.set_column(
                at, pa.field(name, table.schema.field(name).type), pa.nulls(len(table), table.schema.field(name).type)
            )
        case "no rows":
            table = table.slice(0, 0)
        case "twice":
            table = pa.concat_tables([table, table])
        case "odd":
            table = table.append_column("further", pa.array([{"a": [None]}] * len(table)))
    replace(path, table)
    return f"{path.relative_to(run)}: {name} {how}"


def replace(path: Path, table: pa.Table) -> None:
    """Write another table, and make all digests of it right."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    _replace(path, buffer.getvalue(), right=True)


def _link(path: Path, victim: Path, draw: random.Random) -> str:
    """A file, or a folder of it, is a link."""
    place = draw.choice([path, *[each for each in path.parents if "runs" in each.parent.parts and each.parent.name != "runs"]])
    target = draw.choice([victim, victim.parent, Path("/dev/zero"), Path("/"), Path("nowhere"), place])
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    place.symlink_to(target)
    return f"{place.name} links to {target}"


def _odd(path: Path, victim: Path, draw: random.Random) -> str:
    """A pipe, a folder, or nothing in place of a file."""
    path.unlink()
    how = draw.choice(["a pipe", "a folder", "a full folder", "gone"])
    if how == "a pipe":
        os.mkfifo(path)
    elif how != "gone":
        path.mkdir()
        if how == "a full folder":
            (path / "x").write_bytes(b"x")
    return how


def _name(path: Path, victim: Path, draw: random.Random) -> str:
    """A further file, or a folder of another name."""
    name = draw.choice(NAMES)
    place, folder = path.with_name(name), path.parent.with_name(name)
    if draw.random() < 0.5 and not place.exists():
        shutil.copy(path, place)
        return f"a copy is {name!r}"
    if path.parent.parent.name == "runs" or folder.exists():
        return "as it was"
    path.parent.rename(folder)
    return f"its folder is {name!r}"


def _replace(path: Path, data: bytes, right: bool) -> None:
    """Write the file; with `right`, all files of JSON that name its digest name the new one, and are sealed again."""
    before = path.read_bytes()
    path.write_bytes(data)
    if not right:
        return
    run = _run(path)
    old, new = (hashlib.sha256(each).hexdigest() for each in (before, data))
    for other in files(run):
        if other.suffix != ".json" or other == path or old not in (text := other.read_text(errors="replace")):
            continue
        try:
            fields = json.loads(text.replace(old, new))
        except (ValueError, RecursionError):
            continue
        sealed = isinstance(fields, dict) and fields.pop(SEAL, None) is not None
        _replace(other, seal(fields) if sealed else json.dumps(fields).encode(), right=True)
