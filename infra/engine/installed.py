"""The SGLang that an engine's environment has, and the one that nbrl is made for."""

import tomllib
from importlib.metadata import distributions
from pathlib import Path

from nbrl.infra.engine.settings import EngineSettings

NEEDED = Path(__file__).parent / "environment" / "pyproject.toml"
PINNED = "sglang=="


def needed() -> str:
    """The version that set-up installs."""
    project = tomllib.loads(NEEDED.read_text())["project"]
    return next(each.removeprefix(PINNED) for each in project["dependencies"] if each.startswith(PINNED))


def installed(settings: EngineSettings) -> str:
    """The version in the environment, read without running anything of it; empty if there is none."""
    packages = map(str, settings.folder.glob("lib/python*/site-packages"))
    return next((each.version for each in distributions(name="sglang", path=list(packages))), "")
