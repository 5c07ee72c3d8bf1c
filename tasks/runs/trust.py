"""Checks whether this user trusts what the stored settings of a run would start, ask or write beyond the run.

A run on a storage may be another user's. A setting of this kind acts if this user began something with the same value, gives it
now, or says `--trust`. Those that acted are remembered by their digests, below XDG_STATE_HOME, one by one: a run that was changed
since is asked about again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbrl.tasks.environments.kinds.own import SHIPPED
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig

# Programs, code, servers, variables that are sent, and folders that are written; `*` is any name.
REACHING = (
    "home",
    "agent.command",
    "agent.folder",
    "rollout.tools.mcp.*.command",
    "rollout.tools.mcp.*.environment",
    "rollout.tools.mcp.*.url",
    "rollout.tools.mcp.*.headers",
    "rollout.tools.own.*",
    "environments.*.command",
    "environments.*.url",
    "rollout.tools.search.engine",  # with the user's key
    "rollout.tools.search.base_url",
    "rollout.tools.search.model.base_url",
    "rollout.tools.search.model.key",
    "rollout.tools.read_page.reader",
    "rollout.tools.read_page.base_url",
    "rollout.tools.model.base_url",
    "rollout.tools.model.key",
    "reward.judge.base_url",
    "reward.judge.key",
    "update.loss.teacher",
    "update.loss.key",
    "engine.environment",
    "engine.extra_args",
    "sandbox.environment",
    "sandbox.memory_mb",
    "sandbox.max_processes",
    "sandbox.workspace_mb",
    "sandbox.require",
    "sandbox.unprivileged_uid",
    "ray.address",
    "ray.forward",
    "nodes.cache",
    "tracking.uri",
    "tracking.artifacts",
    "tracking.tensorboard",
    "tracking.wandb.project",  # with the user's key
    "tracking.wandb.entity",
    "tracking.wandb.mode",
    "tracking.wandb.folder",
)
# Of environments that are classes, and of those that run in a Python environment of their own.
OWN = ("environments.*.place", "environments.*.settings")
TASKSETS = ("environments.*.taskset", *OWN[1:], "environments.*.held_out_settings", "environments.*.environment")
# Files, by path or by an address that the user's keys open, and data sets, of which a run keeps a copy: they are read again where
# it has none.
READ = ("environments.*.train", "environments.*.held_out", "environments.*.corpus", "environments.*.dataset")
# Lists of tools, of which one reads what a model asks for on the web.
LISTS = ("rollout.tools.default", "rollout.tools.abilities.*", "environments.*.tools")
READER = "read_page"
SHOWN, SHOWN_CHARS = 8, 160  # settings in one refusal, and characters of one
Setting = tuple[str, str]  # key, and value in JSON


def check_trusted(
    config: RunConfig,
    stored: RunConfig,
    overrides: Iterable[str],
    title: str,
    trust: bool,
    used: tuple[str, ...] = ("",),
    copied: bool = True,
) -> None:
    """Raises ConfigError if `config` reaches beyond the run by settings of `stored` that this user has neither used nor given.

    `used` are the beginnings of the keys that matter, `copied` whether the run has its questions. With `trust`, those settings
    are remembered.
    """
    given = [each.partition("=")[0].strip() for each in overrides]
    foreign = [
        (key, value)
        for key, value in sorted({*_reaching(stored, copied)} & {*_reaching(config, copied)})
        if key.startswith(used)
        and not any(key == each or key.startswith(f"{each}.") for each in given)
        and not _mark((key, value)).exists()
    ]
    if trust:
        _remember(foreign)
    elif foreign:
        shown = [f"  {key}: {value}"[:SHOWN_CHARS] for key, value in foreign[:SHOWN]]
        more = [f"  and {len(foreign) - SHOWN} more"] if len(foreign) > SHOWN else []
        lines = "\n".join([*shown, *more])
        raise ConfigError(
            f"{title} was begun by another user or on another machine, and its settings reach beyond it:\n{lines}\n"
            "give --trust if you trust their author, or other values where there is --set"
        )


def remember(config: RunConfig) -> None:
    """Remember that this user works with these settings."""
    _remember(_reaching(config))


def _remember(settings: Iterable[Setting]) -> None:
    with suppress(OSError):  # without a folder to write to, the user is asked again
        for setting in settings:
            _mark(setting).parent.mkdir(parents=True, exist_ok=True)
            _mark(setting).touch()


def _mark(setting: Setting) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "nbrl", "trusted", hashlib.sha256("\0".join(setting).encode()).hexdigest())


def _reaching(config: RunConfig, copied: bool = False) -> Iterator[Setting]:
    """Yield the settings that reach beyond a run; without those that are read, where what they name is `copied`."""
    changed = config.model_dump(mode="json", exclude_defaults=True)
    classes = {
        name: each for name, each in changed["environments"].items() if "place" in each and not each["place"].startswith(SHIPPED)
    }
    tasksets = {name: each for name, each in changed["environments"].items() if "taskset" in each}
    read = () if copied else READ
    sections = [(key, changed) for key in (*REACHING, *read)] + [(key, {"environments": classes}) for key in OWN]
    sections += [(key, {"environments": tasksets}) for key in TASKSETS]
    for key, section in sections:
        for name, value in _values(section, key.split("."), ""):
            if key not in READ or isinstance(value, str):  # else a number of questions that are made
                yield name, json.dumps(value, sort_keys=True)
    for key in LISTS:
        for name, value in _values(changed, key.split("."), ""):
            if READER in value:
                yield name, json.dumps(READER)


def _values(section: Mapping[str, Any], key: list[str], above: str) -> Iterator[tuple[str, Any]]:
    """Yield each value at `key`, with its key in full."""
    for name in [*section] if key[0] == "*" else [key[0]]:
        value = section.get(name)
        if value is None:
            continue
        if key[1:]:
            yield from _values(value, key[1:], f"{above}{name}.")
        else:
            yield from _leaves(value, f"{above}{name}")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield each value below a key by itself: what a user adds beside it makes no other value of it."""
    if isinstance(value, dict) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{key}.{name}")
    else:
        yield key, value
