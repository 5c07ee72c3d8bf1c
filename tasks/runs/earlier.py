"""Configurations of runs that earlier releases began, as this release has them."""

from typing import Any

KINDS = {"generated": "world"}


def of_this_release(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings with `data`, of which there was one, as the environment `world` or `files`."""
    if "data" not in stored:
        return stored
    data = dict(stored["data"])
    data["kind"] = KINDS.get(data.get("kind", "generated"), data.get("kind"))
    kept = {key: value for key, value in stored.items() if key != "data"}
    return kept | {"environments": {data["kind"]: data}}
