"""JSON objects that carry the digest of their own fields, so that damage is never read as other content."""

import hashlib
import json
from typing import Any

from nbrl.infra.errors import DamagedError
from nbrl.infra.parse import json_value

SEAL = "sha256"


def seal(fields: dict[str, Any]) -> bytes:
    """The fields as JSON, with the key `sha256` over all others."""
    return json.dumps({**fields, SEAL: _digest(fields)}, indent=1).encode()


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """The fields. Raises DamagedError where they are not what was sealed; an object without a seal is taken as it is."""
    try:
        fields = json_value(data)
    except ValueError as error:
        raise DamagedError(f"{where} is damaged: it is no JSON ({error}); bring it back from a copy") from error
    if not isinstance(fields, dict):
        raise DamagedError(f"{where} is damaged: it holds no fields; bring it back from a copy")
    digest = fields.pop(SEAL, None)
    if digest is not None and digest != _digest(fields):
        raise DamagedError(f"{where} is damaged: it is not what was written there; bring it back from a copy")
    return fields


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
