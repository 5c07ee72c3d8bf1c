"""Google results by Serper."""

from nbrl.agent.http.json_service import Service
from nbrl.agent.tools.web.search import Hit, entries, text

URL, VARIABLE = "https://google.serper.dev", "SERPER_API_KEY"


class Serper:
    """search.Engine: POST /search {q, num}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Serper", base_url, variable=VARIABLE, timeout_s=timeout_s, header="X-API-KEY", prefix="")
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        reply = await self.service.post("/search", {"q": query, "num": self._top_k})
        hits = entries("Serper", reply, "organic")
        return [Hit(text(e.get("title")), text(e.get("link")), text(e.get("snippet"))) for e in hits][: self._top_k]
