"""Web search by Firecrawl."""

from nbrl.agent.http.json_service import Service, ServiceError
from nbrl.agent.tools.web.search import Hit, entries, text

URL, VARIABLE = "https://api.firecrawl.dev", "FIRECRAWL_API_KEY"


class Firecrawl:
    """search.Engine: POST /v2/search {query, limit}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Firecrawl", base_url, variable=VARIABLE, timeout_s=timeout_s)
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        reply = await self.service.post("/v2/search", {"query": query, "limit": self._top_k})
        if isinstance(reply, dict) and reply.get("success") is False:
            raise ServiceError("Firecrawl could not search")
        hits = entries("Firecrawl", reply, "data", "web")
        return [Hit(text(e.get("title")), text(e.get("url")), text(e.get("description"))) for e in hits][: self._top_k]
