"""A corpus, its passages and their BM25 index in memory or mapped from files, and the tool that searches it."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import bm25s

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.functions import FunctionTool

QUERY_CHARS = 1_000


class Corpus:
    """Finds passages by BM25 (bm25s with its defaults; words of two letters or more, no stop words). Threads may share it.

    `index` is None where the passages have no words; then nothing is ever found.
    """

    def __init__(self, passages: pa.ChunkedArray, index: "bm25s.BM25 | None") -> None:
        self._passages, self._index = passages, index

    @classmethod
    def in_memory(cls, passages: Sequence[str]) -> "Corpus":
        """Index the passages now. A large corpus takes long and much memory: see nbrl.agent.tools.corpus.index."""
        if not passages:
            return cls(pa.chunked_array([], pa.large_string()), None)
        return cls(pa.chunked_array([pa.array(passages, pa.large_string())]), index_of(passages))

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def has_words(self) -> bool:
        """Return whether anything can be found."""
        return self._index is not None

    def retrieve(self, query: str, k: int) -> list[str]:
        """Return up to `k` passages that share a word with the query, best first."""
        import bm25s

        tokens = bm25s.tokenize([query], stopwords=None, show_progress=False, return_ids=False)
        if self._index is None or not tokens[0]:
            return []
        numbers, scores = self._index.retrieve(tokens, k=min(k, len(self)), show_progress=False)
        return [self._passages[int(i)].as_py() for i, score in zip(numbers[0], scores[0], strict=True) if score > 0]


def index_of(passages: Iterable[str]) -> "bm25s.BM25 | None":
    """Return the BM25 index of passages, read once; None where they have no words. Its `vocab_dict` maps a word to its column."""
    import bm25s  # brings scipy, which takes a tenth of a second

    tokens = bm25s.tokenize(passages, stopwords=None, show_progress=False)
    if not tokens.vocab:
        return None
    index = bm25s.BM25()
    index.index(tokens, create_empty_token=False, show_progress=False)
    return index


class SearchTool(FunctionTool):
    """`search(query)` returns the `top_k` best passages of the corpus, one per line, best first."""

    def __init__(self, corpus: Corpus, top_k: int = 1) -> None:
        self._corpus, self._top_k = corpus, top_k
        if not corpus.has_words:
            raise ToolError("the corpus of search has no words; give passages of text")
        super().__init__(self._search, name="search")

    def _search(self, query: str) -> str:
        """looks up the corpus and returns what fits best

        Args:
            query: a few words
        """
        if not query.strip():
            raise ValueError("search needs a query: a string with at least one word")
        return "\n".join(self._corpus.retrieve(query[:QUERY_CHARS], self._top_k)) or "nothing found"
