"""Configurations of runs that earlier releases began, as this release has them."""

from typing import Any

KINDS = {"generated": "world"}


def of_this_release(stored: dict[str, Any]) -> dict[str, Any]:
    """The settings with `data`, of which there was one, as the environment `world` or `files`; without a tolerance in nats; and
    with the bound of `update.tis` by its name.
    """
    return _bounds(_relative(_environments(stored)))


def _environments(stored: dict[str, Any]) -> dict[str, Any]:
    if "data" not in stored:
        return stored
    data = dict(stored["data"])
    data["kind"] = KINDS.get(data.get("kind", "generated"), data.get("kind"))
    kept = {key: value for key, value in stored.items() if key != "data"}
    return kept | {"environments": {data["kind"]: data}}


def _relative(stored: dict[str, Any]) -> dict[str, Any]:
    """A publish.tolerance below 1 was one in nats, on which nothing depends but when the run stops."""
    publish = stored.get("publish") or {}
    if publish.get("tolerance", 1) >= 1:
        return stored
    return stored | {"publish": {key: value for key, value in publish.items() if key != "tolerance"}}


def _bounds(stored: dict[str, Any]) -> dict[str, Any]:
    """update.tis.cap is now `high`, of which `low` is the inverse where it is not set."""
    update = stored.get("update") or {}
    tis = update.get("tis") or {}
    if "cap" not in tis:
        return stored
    renamed = {"high" if key == "cap" else key: value for key, value in tis.items()}
    return stored | {"update": update | {"tis": renamed}}
