"""What a preparation computes: its settings and the digests of its files, wherever these lie."""

import json
from collections.abc import Mapping
from typing import Any

from nbrl.infra.manifest import file_sha256
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.decisive import decisive

Identity = dict[str, Any]
SHOWN_CHARS = 60  # of a value


def identity(settings: PrepareSettings) -> Identity:
    """The settings that decide the prepared data, by dotted key; each source and evaluation file with its SHA-256."""
    leaves = decisive(settings)
    for kind, files in (("sources", settings.sources), ("evaluation", settings.evaluation)):
        leaves[kind] = [file.name for file in files]
        for file in files:
            leaves[f"{kind}.{file.name}"] = file.model_dump(mode="json") | {"sha256": file_sha256(file.path)}
    return leaves


def differences(began: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each key in which two preparations differ."""
    return [
        f"{key} is {_shown(now.get(key))}, it was {_shown(began.get(key))}"
        for key in dict.fromkeys([*now, *began])
        if now.get(key) != began.get(key)
    ]


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"
