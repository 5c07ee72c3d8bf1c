"""The vocabulary of an index, mapped from a file: as a dictionary it would take hundreds of MB in every process."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import pyarrow as pa


class Words(Mapping[str, int]):
    """Word to column of the index. A word is found by bisection, so only a few pages of the file are read."""

    def __init__(self, table: pa.Table) -> None:
        """`table` is what `words_table` made."""
        self._words, self._columns = table["word"], table["column"]

    def __getitem__(self, word: str) -> int:
        place = bisect_left(self._words, word, key=pa.LargeStringScalar.as_py)
        if place == len(self._words) or self._words[place].as_py() != word:
            raise KeyError(word)
        return int(self._columns[place].as_py())

    def __iter__(self) -> Iterator[str]:
        return (word.as_py() for word in self._words)

    def __len__(self) -> int:
        return len(self._words)


def words_table(columns: Mapping[str, int]) -> pa.Table:
    """Rows of (word, column), in the order in which Python sorts the words."""
    words = sorted(columns)
    schema = pa.schema([("word", pa.large_string()), ("column", pa.int64())])
    return pa.table([words, [columns[word] for word in words]], schema=schema)
