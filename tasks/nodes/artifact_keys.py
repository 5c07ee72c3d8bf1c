"""Keys of what Prefect's pages show."""

import hashlib
import re


def slug(kind: str, name: str) -> str:
    """A key that Prefect takes (small letters, digits, dashes), another one for each name."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{kind}-{plain}" if plain == name else f"{kind}-{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
