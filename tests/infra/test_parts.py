"""Tables in parts: rows come in the order of the index, whatever part they are in."""

from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.infra import parts
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage, StorageSettings


def index(*rows: tuple[str, str, int]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("part", "sha256", "row"), row, strict=True)) for row in rows])


@pytest.mark.parametrize("limit", [parts.TAKEN_BYTES, 0], ids=["taken", "larger than one array can be"])
def test_rows_come_in_the_order_of_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(parts, "TAKEN_BYTES", limit)
    storage = Storage(StorageSettings(root=str(tmp_path)))
    a = storage.write_table("a.parquet", pa.table({"x": [1, 2, 3]}))
    b = storage.write_table("b.parquet", pa.table({"x": [4]}))
    made = index(("b.parquet", b, 0), ("a.parquet", a, 2), ("a.parquet", a, 0))
    storage.write_table("t.index.parquet", made)
    assert storage.read_table("t.index.parquet")["x"].to_pylist() == [4, 3, 1]
    assert storage.read_index("t.index.parquet").equals(made)


@pytest.mark.parametrize("row", [-1, 1, 9])
def test_a_row_that_a_part_does_not_have_is_damage(tmp_path: Path, row: int) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    digests = [storage.write_table(name, pa.table({"x": [1]})) for name in ("a.parquet", "b.parquet")]
    storage.write_table("t.index.parquet", index(("a.parquet", digests[0], row), ("b.parquet", digests[1], 0)))
    with pytest.raises(DamagedError, match=rf"an index names row {row} of a.parquet, which has 1 rows"):
        storage.read_table("t.index.parquet")


def test_a_table_that_is_no_index_is_damage(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_table("t.index.parquet", pa.table({"x": [1]}))
    with pytest.raises(DamagedError, match=r"an index of a table in parts lacks part, row, sha256"):
        storage.read_table("t.index.parquet")


def test_a_damaged_part_is_told(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    digest = storage.write_table("a.parquet", pa.table({"x": [1]}))
    storage.write_table("t.index.parquet", index(("a.parquet", digest, 0)))
    storage.write_bytes("a.parquet", b"x")
    with pytest.raises(DamagedError, match=r"a\.parquet is damaged"):
        storage.read_table("t.index.parquet")
