"""The common part of all web search engines: results as compact text."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nbrl.agent.http.json_service import ServiceError
from nbrl.agent.tools.corpus.search import QUERY_CHARS
from nbrl.agent.tools.functions import FunctionTool

TITLE_CHARS, PASSAGE_CHARS = 200, 1_000


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
    """`search(query)` over the web."""

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
    """The list of objects at `path` of an engine's answer. Raises ServiceError if there is something else."""
    for key in path:
        reply = reply.get(key, []) if isinstance(reply, dict) else None
    if not isinstance(reply, list):
        raise ServiceError(f"{title} answered JSON without {'.'.join(path)}")
    return [entry for entry in reply if isinstance(entry, dict)]


def text(value: Any) -> str:
    """A field that should be text."""
    return value if isinstance(value, str) else ""


def _line(value: str) -> str:
    return " ".join(value.split())
