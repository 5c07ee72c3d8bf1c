"""Files of text, which may be packed: they are read as far as their bound."""

import gzip
from pathlib import Path
from typing import IO

from nbrl.tasks.errors import ConfigError

ZIPPED = ".gz"
TEXT_BYTES = 4 << 30  # of a file of text that is read whole, or unpacked


def kind_of(path: Path) -> str:
    """The suffix that says the format."""
    return (path.with_suffix("") if path.suffix.lower() == ZIPPED else path).suffix.lower()


def opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if is_zipped(path) else path.open("rb")  # type: ignore[return-value]


def is_zipped(path: Path) -> bool:
    return path.suffix.lower() == ZIPPED


def contents(path: Path) -> bytes:
    """What is in a file of text, unpacked. Raises ConfigError where that is more than TEXT_BYTES."""
    parts, left = list[bytes](), TEXT_BYTES
    with opened(path) as file:
        while part := file.read(1 << 20):  # asked for a gigabyte at once, it would make room for one
            parts.append(part)
            left -= len(part)
            if left < 0:
                raise too_long(path)
    return b"".join(parts)


def too_long(path: Path) -> ConfigError:
    unpacked = " unpacked" if is_zipped(path) else ""
    return ConfigError(f"data file {path} has more than {TEXT_BYTES >> 20} MB{unpacked}; cut it into several files")
