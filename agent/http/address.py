"""Addresses that settings name."""

import re
from urllib.parse import urlsplit


def check_address(url: str) -> None:
    """Raises ValueError unless `url` is an address of the web without a name or password in it."""
    try:
        usable = re.fullmatch(r"https?://[^\s@]+", url) is not None and bool(urlsplit(url).hostname) and urlsplit(url).port != 0
    except ValueError:  # of a port that is no number, or too large
        usable = False
    if not usable:
        raise ValueError("give an address like https://host/path, without a name or password in it")
