"""What a model wrote and saw as blocks of a page: escaped, code in colours, the rest of long ones folded."""

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

COLOURED_CHARS = 50_000  # of code; longer code is shown in one colour
FOLDED_LINES, FOLDED_CHARS = 24, 3_000  # a longer block is folded
SHOWN_LINES, SHOWN_CHARS = 10, 1_000  # what a folded block shows


@dataclass(frozen=True)
class TextBlock:
    """A text under its label; `beginning` is what is shown of a folded one, and empty for a short one. `kind` is its look."""

    label: str
    kind: str
    whole: Markup
    beginning: Markup
    lines: int


def block(label: str, kind: str, text: str, look: Callable[[str], Markup] = escape) -> TextBlock:
    """Return a text as a block; `look` makes markup of it, in which nothing of the text acts."""
    lines = text.splitlines()
    beginning = ""
    if len(lines) > FOLDED_LINES or len(text) > FOLDED_CHARS:
        beginning = "\n".join(lines[:SHOWN_LINES])[:SHOWN_CHARS]
    return TextBlock(label, kind, look(text), look(beginning) if beginning else Markup(), len(lines))


def python(code: str) -> Markup:
    """Return code in the colours of its tokens, by classes of the style sheet."""
    if len(code) > COLOURED_CHARS:
        return escape(code)
    return Markup(highlight(code, PythonLexer(stripnl=False, ensurenl=False), HtmlFormatter(nowrap=True)))
