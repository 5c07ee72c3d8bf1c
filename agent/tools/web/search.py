"""Web search by Exa, Firecrawl or Serper: results as compact text."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nbrl.agent.http.json_service import Service, ServiceError
from nbrl.agent.tools.corpus.corpus import QUERY_CHARS
from nbrl.agent.tools.functions import FunctionTool

TITLE_CHARS, PASSAGE_CHARS = 200, 1_000
EXA_URL, EXA_KEY = "https://api.exa.ai", "EXA_API_KEY"
FIRECRAWL_URL, FIRECRAWL_KEY = "https://api.firecrawl.dev", "FIRECRAWL_API_KEY"
SERPER_URL, SERPER_KEY = "https://google.serper.dev", "SERPER_API_KEY"


@dataclass(frozen=True)
class Hit:
    """A page that was found, and the part of it that fits."""

    title: str
    url: str
    passage: str

    def __str__(self) -> str:
        parts = [f"{_line(self.title)[:TITLE_CHARS]} <{self.url[:2000]}>", _line(self.passage)[:PASSAGE_CHARS]]
        return "\n".join(part for part in parts if part)


Engine = Callable[[str], Awaitable[list[Hit]]]


def web_search(engine: Engine) -> FunctionTool:
    """Return the tool `search(query)` over the web."""

    async def search(query: str) -> str:
        """Searches the web: title, address and a passage of the best pages.

        Args:
            query: what you would type into a search box
        """
        if not query.strip():
            raise ValueError("search needs a query: a string with at least one word")
        hits = await engine(query[:QUERY_CHARS])
        return "\n\n".join(f"[{number}] {hit}" for number, hit in enumerate(hits, 1)) or "nothing found"

    return FunctionTool(search)


def entries(title: str, reply: Any, *path: str) -> list[dict[str, Any]]:
    """Return the list of objects at `path` of an engine's answer. Raises ServiceError if there is something else."""
    for key in path:
        reply = reply.get(key, []) if isinstance(reply, dict) else None
    if not isinstance(reply, list):
        raise ServiceError(f"{title} answered JSON without {'.'.join(path)}")
    return [entry for entry in reply if isinstance(entry, dict)]


def text(value: Any) -> str:
    """Return a field that should be text."""
    return value if isinstance(value, str) else ""


def _line(value: str) -> str:
    return " ".join(value.split())


class Exa:
    """search.Engine: POST /search {query, numResults, contents}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Exa", base_url, variable=EXA_KEY, timeout_s=timeout_s, header="x-api-key", prefix="")
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        contents = {"text": {"maxCharacters": PASSAGE_CHARS}, "highlights": True}
        reply = await self.service.post("/search", {"query": query, "numResults": self._top_k, "contents": contents})
        hits = entries("Exa", reply, "results")
        return [Hit(text(e.get("title")), text(e.get("url")), _passage(e)) for e in hits][: self._top_k]


def _passage(entry: dict[str, Any]) -> str:
    """Return the highlights, or the beginning of the page where there are none."""
    highlights = entry.get("highlights")
    joined = " … ".join(filter(None, map(text, highlights))) if isinstance(highlights, list) else ""
    return joined or text(entry.get("text"))


class Firecrawl:
    """search.Engine: POST /v2/search {query, limit}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Firecrawl", base_url, variable=FIRECRAWL_KEY, timeout_s=timeout_s)
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        reply = await self.service.post("/v2/search", {"query": query, "limit": self._top_k})
        if isinstance(reply, dict) and reply.get("success") is False:
            raise ServiceError("Firecrawl could not search")
        hits = entries("Firecrawl", reply, "data", "web")
        return [Hit(text(e.get("title")), text(e.get("url")), text(e.get("description"))) for e in hits][: self._top_k]


class Serper:
    """search.Engine: POST /search {q, num}."""

    def __init__(self, base_url: str, top_k: int, timeout_s: float) -> None:
        self.service = Service("Serper", base_url, variable=SERPER_KEY, timeout_s=timeout_s, header="X-API-KEY", prefix="")
        self._top_k = top_k

    async def __call__(self, query: str) -> list[Hit]:
        reply = await self.service.post("/search", {"q": query, "num": self._top_k})
        hits = entries("Serper", reply, "organic")
        return [Hit(text(e.get("title")), text(e.get("link")), text(e.get("snippet"))) for e in hits][: self._top_k]
