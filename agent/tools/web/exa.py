"""Search by meaning with Exa."""

from typing import Any

from nbrl.agent.http.json_service import Service
from nbrl.agent.tools.web.search import PASSAGE_CHARS, Hit, entries, text

URL, VARIABLE = "https://api.exa.ai", "EXA_API_KEY"


class Exa:
    """search.Engine: POST /search {query, numResults, contents}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Exa", base_url, variable=VARIABLE, timeout_s=timeout_s, header="x-api-key", prefix="")
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        contents = {"text": {"maxCharacters": PASSAGE_CHARS}, "highlights": True}
        reply = await self.service.post("/search", {"query": query, "numResults": self._top_k, "contents": contents})
        hits = entries("Exa", reply, "results")
        return [Hit(text(e.get("title")), text(e.get("url")), _passage(e)) for e in hits][: self._top_k]


def _passage(entry: dict[str, Any]) -> str:
    """The highlights, or the beginning of the page where there are none."""
    highlights = entry.get("highlights")
    joined = " … ".join(filter(None, map(text, highlights))) if isinstance(highlights, list) else ""
    return joined or text(entry.get("text"))
