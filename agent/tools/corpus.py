"""Search over a local corpus with BM25."""

from collections.abc import Sequence

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.functions import FunctionTool

QUERY_CHARS = 1_000


class SearchTool(FunctionTool):
    """`search(query)` returns the `top_k` best passages of the corpus, one per line, best first."""

    def __init__(self, passages: Sequence[str], top_k: int = 1) -> None:
        import bm25s  # brings scipy, which takes a tenth of a second

        self._passages = list(passages)
        self._top_k = min(top_k, len(self._passages))
        self._index = bm25s.BM25()
        if not any(len(word) > 1 for passage in self._passages for word in passage.split()):
            raise ToolError("the corpus of search has no words; give passages of text")
        self._index.index(bm25s.tokenize(self._passages, stopwords=None, show_progress=False), show_progress=False)
        super().__init__(self._search, name="search")

    async def _search(self, query: str) -> str:
        """looks up the corpus and returns what fits best

        Args:
            query: a few words
        """
        if not query.strip():
            raise ValueError("search needs a query: a string with at least one word")
        import bm25s

        tokens = bm25s.tokenize([query[:QUERY_CHARS]], stopwords=None, show_progress=False, return_ids=False)
        if not tokens[0]:
            return "nothing found"
        found, scores = self._index.retrieve(tokens, k=self._top_k, show_progress=False)
        hits = [self._passages[int(i)] for i, score in zip(found[0], scores[0], strict=True) if score > 0]
        return "\n".join(hits) if hits else "nothing found"
