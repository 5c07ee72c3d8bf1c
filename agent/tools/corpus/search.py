"""The tool that searches a corpus."""

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.functions import FunctionTool

QUERY_CHARS = 1_000


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
