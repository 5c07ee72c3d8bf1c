"""Search over a local corpus with BM25."""

from collections.abc import Sequence
from typing import Any

import bm25s

from agent.errors import ToolError


class SearchTool:
    """`search(query)` returns the `top_k` best passages of the corpus, one a line, best first."""

    name = "search"
    parameters: tuple[str, ...] = ("query",)
    summary = "looks up the corpus and returns what fits best"

    def __init__(self, passages: Sequence[str], top_k: int = 1) -> None:
        self._passages = list(passages)
        self._top_k = min(top_k, len(self._passages))
        self._index = bm25s.BM25()
        if not any(len(word) > 1 for passage in self._passages for word in passage.split()):
            raise ToolError("the corpus of search has no words; give passages of text")
        self._index.index(bm25s.tokenize(self._passages, stopwords=None, show_progress=False), show_progress=False)

    async def call(self, arguments: dict[str, Any]) -> str:
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            raise ValueError("search needs a query: a string with at least one word")
        tokens = bm25s.tokenize([query[:1000]], stopwords=None, show_progress=False, return_ids=False)
        if not tokens[0]:
            return "nothing found"
        found, scores = self._index.retrieve(tokens, k=self._top_k, show_progress=False)
        hits = [self._passages[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        return "\n".join(hits) if hits else "nothing found"
