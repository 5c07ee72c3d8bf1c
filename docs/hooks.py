"""Hook of MkDocs for links that leave docs/: to the repository's address if `repo_url` is set, otherwise their text alone.

In the sources such links are relative (`../benchmarks/resume.py`), as a Git host shows them; a site has no pages for these files.
"""

import re
from typing import Any

LEAVING = re.compile(r"\[(?P<text>[^\]]+)\]\(\.\./(?P<path>[^)\s]+)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """The page's text with links that leave docs/ rewritten."""
    address = (config.repo_url or "").rstrip("/")

    def rewritten(link: re.Match[str]) -> str:
        return f"[{link['text']}]({address}/blob/HEAD/{link['path']})" if address else link["text"]

    return LEAVING.sub(rewritten, markdown)
