"""Where everything is printed: answers and tables on `out`, the rest on `err`."""

from rich.console import Console
from rich.text import Text

out, err = Console(), Console(stderr=True)


def plain(text: str, style: str = "") -> Text:
    """Text as it is: no markup, and nothing that a terminal would obey."""
    return Text("".join(c if c in "\n\t" or c.isprintable() else "\ufffd" for c in text), style)


def say(text: str, style: str = "") -> None:
    """A line for people, on stderr; some of it may come from a server."""
    err.print(plain(f"nbrl: {text}", style), soft_wrap=True)
