"""What sets an answer apart in Markdown and LaTeX and changes nothing of it: emphasis, boxes, marks of mathematics, texts."""

import re

INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
MOST = 8  # marks around one another
_AROUND = re.compile(
    r"\\(?:boxed|fbox)\s*\{(?P<box>.*)\}|\\\((?P<inline>.*)\\\)|\\\[(?P<display>.*)\\\]|\$\$(?P<double>.*)\$\$"
    r"|(?<!\\)\$(?=.*[^\\]\$$)(?P<single>.*)\$|(?P<emphasis>\*\*|__|[*_`])(?P<stressed>.*)(?P=emphasis)",
    re.DOTALL,
)
_STRESSED = re.compile(r"(\*\*|__|[*_`])(.*)\1\.?", re.DOTALL)
_HEADING = re.compile(r"^\s*#+\s+")
_PLAIN = (
    (re.compile(r"(?<!\\)\$\s*([+-]?\d[\d.,]*)\s*(?<!\\)\$"), r" \1 "),
    (re.compile(r"\\mathrm\s*\{([A-Za-z])\}"), r"\1"),
    (re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{([^{}\\]*)\}"), r" \1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\!|(?<=,)\}|\{(?=,\})|\\(?=,\d)"), ""),
    (re.compile(r"\^\s*(?:\\circ\b|\{\s*\\circ\s*\})"), "°"),
    (re.compile(r"\\[, ]"), " "),
)


def unmarked(text: str) -> str:
    """The text without what is around all of it, but for the full stop behind a number."""
    text = _HEADING.sub("", text)
    for _ in range(MOST):
        if not (found := _AROUND.fullmatch(text.strip().removesuffix(".").strip())):
            break
        text = next(
            found[name] for name in ("box", "inline", "display", "double", "single", "stressed") if found[name] is not None
        )
    return text.strip()


def unstressed(text: str) -> str:
    """The text without emphasis around all of it."""
    text = _HEADING.sub("", text)
    for _ in range(MOST):
        if not (found := _STRESSED.fullmatch(text.strip())):
            break
        text = found[2]
    return text.strip()


def plain(text: str) -> str:
    """LaTeX of a number and its unit as plain text."""
    for mark, simple in _PLAIN:
        text = mark.sub(simple, text)
    return text.strip()
