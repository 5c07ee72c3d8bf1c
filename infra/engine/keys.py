"""The keys that an engine's requests must bring."""

import os
import secrets
from pathlib import Path

import yaml


def new_key() -> str:
    """256 random bits as hexadecimal digits: SGLang would take a key that begins with - for an option."""
    return secrets.token_hex(32)


def write_keys(path: Path, key: str, administrator: str) -> None:
    """Write keys as SGLang's configuration, in a new file that only this user can read: a command line is everybody's to see.

    `key` is that of requests; that of the `administrator` is needed to change weights.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        yaml.safe_dump({"admin-api-key": administrator, "api-key": key}, file)


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
