"""Tables of Parquet and Arrow that a stranger made: nothing in them runs, and none takes all memory."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

from nbrl.infra import arrow_files
from nbrl.infra.arrow_files import UnfitTableError, read_ipc, read_parquet
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.files import read_questions
from nbrl.tasks.errors import ConfigError

LENGTH = 100_000


class Call:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.folder),)


def pickled(folder: Path, wrap: Callable[[pa.Array], pa.Array] = lambda array: array) -> pa.Table:
    """A table with a column of Ray's type of pickles, which make a folder where they are read."""
    stored = pa.array([pickle.dumps(Call(folder))], pa.large_binary())
    column = wrap(pa.ExtensionArray.from_storage(ArrowPythonObjectType(), stored))
    return pa.table({"question": ["a?"], "answers": ["1"], "more": column})


def feather(path: Path, table: pa.Table) -> None:
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)


@pytest.mark.parametrize("wrap", [lambda array: array, lambda array: pa.StructArray.from_arrays([array], ["inner"])])
@pytest.mark.attack(
    tried="A column of a table that Ray reads by unpickling its values",
    wall="tables of plain types alone are read",
    effect="one sentence; nothing ran",
)
def test_no_column_of_another_programs_type_is_read(tmp_path: Path, wrap: Callable[[pa.Array], pa.Array]) -> None:
    table, made = pickled(tmp_path / "made", wrap), tmp_path / "made"
    pq.write_table(table, tmp_path / "x.parquet")
    feather(tmp_path / "x.arrow", table)
    with pytest.raises(DamagedError, match=r"its column 'more' is of a type of another program"):
        Storage(StorageSettings(root=str(tmp_path))).read_table("x.parquet").to_pylist()
    for name in ("x.parquet", "x.arrow"):
        with pytest.raises(ConfigError, match=r"its column 'more' is of a type of another program"):
            read_questions(tmp_path / name, {}, "qa")
    assert not made.exists()


@pytest.mark.parametrize("offsets", [[0, 2**31 - 1, 5], [0, -5, 5], [0, 10_000, 5]])
@pytest.mark.attack(
    tried="A file of Arrow whose texts lie outside of it",
    wall="all offsets are checked before a value is read",
    effect="one sentence",
)
def test_texts_that_lie_outside_a_file_are_refused(tmp_path: Path, offsets: list[int]) -> None:
    texts = pa.StringArray.from_buffers(2, pa.py_buffer(pa.array(offsets, pa.int32()).buffers()[1]), pa.py_buffer(b"12345"))
    feather(tmp_path / "x.arrow", pa.table({"question": texts, "answers": pa.array(["1", "2"])}))
    with pytest.raises(ConfigError, match=r"x\.arrow cannot be read: .*offset"):
        read_questions(tmp_path / "x.arrow", {}, "qa")


@pytest.mark.attack(
    tried="A few kilobytes of Parquet in which each row holds the same long text",
    wall="rows are unpacked in parts, whose memory is counted",
    effect="one sentence",
)
def test_a_table_larger_than_memory_is_refused_before_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.array([0] * 2_000, pa.int32())
    table = pa.table({"a": pa.DictionaryArray.from_arrays(rows, ["x" * LENGTH])})
    pq.write_table(table.cast(pa.schema({"a": pa.string()})), tmp_path / "x.parquet")
    assert (tmp_path / "x.parquet").stat().st_size < LENGTH
    assert read_parquet(tmp_path / "x.parquet").nbytes > 2_000 * LENGTH
    monkeypatch.setattr(arrow_files, "LARGEST", 100 * LENGTH)
    monkeypatch.setattr(arrow_files, "BATCH", LENGTH)
    with pytest.raises(UnfitTableError, match="GB of memory"):
        read_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(arrow_files, "LARGEST", 1)
    for read in (read_parquet, read_ipc):
        with pytest.raises(UnfitTableError, match="it has more than"):
            read(tmp_path / "x.parquet")


@pytest.mark.attack(
    tried="A few kilobytes of Parquet whose one row, or whose many columns, hold the same long text again and again",
    wall="what is read from a path, and an audit as a whole, may take so much memory and no more",
    effect="one sentence",
)
@pytest.mark.parametrize("shape", ["one row", "many columns"])
def test_a_table_larger_than_its_sizes_say_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 1500, pa.int32()), ["x" * 1_000_000])
    columns = {"a": pa.ListArray.from_arrays(pa.array([0, 1500], pa.int32()), long)}
    if shape == "many columns":
        columns = {str(number): long.slice(0, 60) for number in range(30)}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", compression="zstd", store_schema=False, write_statistics=False)
    assert (tmp_path / "x.parquet").stat().st_size < 500_000
    monkeypatch.setattr(arrow_files, "LARGEST", 1 << 28)
    with pytest.raises(UnfitTableError, match="GB of memory"):
        read_parquet(tmp_path / "x.parquet")
    assert len(bytearray(1 << 30)) == 1 << 30, "it holds for the table alone"


def test_a_table_that_is_unpacked_in_parts_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"a": [str(n) for n in range(1000)], "b": [[n, None] for n in range(1000)], "c": [None] * 1000})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=300)
    whole = read_parquet(tmp_path / "x.parquet")
    monkeypatch.setattr(arrow_files, "LARGEST", 1 << 20)
    monkeypatch.setattr(arrow_files, "BATCH", 1)
    assert read_parquet(tmp_path / "x.parquet") == whole
    assert read_parquet(tmp_path / "x.parquet", ["b", "none"]) == whole.select(["b"])
