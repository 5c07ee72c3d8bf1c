"""Seeds derived from the run's seed and the place of their use."""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a seed in [0, 2^31) that depends on every part and on nothing else."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
