"""The index of a large corpus on disk: passages, words and scores, all memory-mapped, so that processes share their pages.

`write_passages`, then `index_passages` in a process of its own (`python -m nbrl.agent.tools.corpus.index FOLDER`), whose memory
is given back when it ends; after that `open_corpus` takes milliseconds. A process that was cut off leaves half of the files: the
caller makes them in a temporary folder, and renames it.

The vocabulary of an index, mapped from a file: as a dictionary it would take hundreds of MB in every process.
"""

import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from nbrl.agent.tools.corpus.corpus import Corpus, index_of

FORMAT = 1


class Words(Mapping[str, int]):
    """Word to column of the index. A word is found by bisection, so only a few pages of the file are read."""

    def __init__(self, table: pa.Table) -> None:
        """Map the words of `table`, which `words_table` made."""
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
    """Return rows of (word, column), in the order in which Python sorts the words."""
    words = sorted(columns)
    schema = pa.schema([("word", pa.large_string()), ("column", pa.int64())])
    return pa.table([words, [columns[word] for word in words]], schema=schema)


"""Counts up when these files change, or what bm25s makes of the same passages does."""
PASSAGES, WORDS = "passages.arrow", "words.arrow"


def write_passages(passages: pa.ChunkedArray, folder: Path) -> None:
    """Write passages, an array of strings, into a folder that exists."""
    _write(pa.table({"passage": passages}), folder / PASSAGES)


def index_passages(folder: Path) -> None:
    """Add the index to the passages of a folder. Takes about 0.1 ms and 4 kB of memory for a passage of 80 words."""
    index = index_of(passage.as_py() for passage in _map(folder / PASSAGES)["passage"])
    words = {} if index is None else index.vocab_dict
    _write(words_table(words), folder / WORDS)
    if index is not None:
        index.vocab_dict = {}  # bm25s would read all words into memory again
        index.save(folder, show_progress=False)


def open_corpus(folder: Path) -> Corpus:
    """Return the corpus of a folder that was indexed. Raises OSError or ValueError where files are missing or damaged."""
    import bm25s

    words, passages = Words(_map(folder / WORDS)), _map(folder / PASSAGES)["passage"]
    if not words:
        return Corpus(passages, None)
    index = bm25s.BM25.load(folder, mmap=True, load_vocab=False, show_progress=False)
    index.vocab_dict = words
    return Corpus(passages, index)


def _write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


def _map(path: Path) -> pa.Table:
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


if __name__ == "__main__":
    index_passages(Path(sys.argv[1]))
