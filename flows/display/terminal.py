"""Consoles for all output: answers and tables on `out`, everything else on `err`."""

from rich.console import Console
from rich.text import Text

out, err = Console(), Console(stderr=True)


def plain(text: str, style: str = "") -> Text:
    """Return the text without markup or terminal control sequences."""
    return Text("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text), style)


def say(text: str, style: str = "") -> None:
    """Print a line on stderr; part of it may come from a server."""
    err.print(plain(f"nbrl: {text}", style), soft_wrap=True)
