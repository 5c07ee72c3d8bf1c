"""The text of displays whose plain text is only an object's name, such as `<IPython.core.display.Markdown object>`."""

import json
import re
from html.parser import HTMLParser
from typing import Any

_NAME = re.compile(r"<[\w.]+ (?:object(?: at 0x[0-9a-f]+)?|at 0x[0-9a-f]+)>")
_CHARS = 1 << 17  # of a page that are looked at
_HIDDEN = frozenset({"script", "style", "head", "template"})
_LINES = frozenset(
    {"p", "div", "br", "tr", "li", "table", "ul", "ol", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "caption"}
)


def readable(data: dict[str, Any]) -> str | None:
    """Return the text to show instead of the plain text of `data`, by media types; None if that is enough or all there is."""
    plain = data.get("text/plain")
    if isinstance(plain, str) and not _NAME.fullmatch(plain):
        return None
    for kind in ("text/markdown", "text/latex"):
        if isinstance(text := data.get(kind), str):
            return text
    if isinstance(page := data.get("text/html"), str):
        return _Text(page[:_CHARS]).text() or None
    if "application/json" in data:
        return json.dumps(data["application/json"], ensure_ascii=False, default=str)
    return None


class _Text(HTMLParser):
    """The text that a browser shows of a page: a line for each block, tabs between the cells of a table."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._hidden = 0
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self._hidden += tag in _HIDDEN
        self._parts += "\n" if tag in _LINES else "\t" if tag in ("td", "th") else ""

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN and self._hidden > 0
        self._parts += "\n" if tag in _LINES else ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(re.sub(r"\s+", " ", data))

    def text(self) -> str:
        lines = (line.strip(" ").removeprefix("\t").rstrip() for line in "".join(self._parts).split("\n"))
        return "\n".join(line for line in lines if line.strip())
