"""What a Hugging Face model folder holds."""

from pathlib import Path

from tasks.update.errors import UpdateError

WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")


def check_model(path: str) -> None:
    """Raises UpdateError unless `path` is a folder with a configuration and weights."""
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise UpdateError(f"{path} is not a Hugging Face model folder: it has no config.json")
    if not any(entry.name.endswith(WEIGHT_SUFFIXES) for entry in folder.iterdir()):
        raise UpdateError(f"{path} holds no weights")
