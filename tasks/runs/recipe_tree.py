"""A recipe as a tree of settings before it is checked: files and their bases, overrides, paths, and the source of each key."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from nbrl.infra.parse import yaml_value
from nbrl.infra.paths import content, expanded
from nbrl.tasks.errors import ConfigError

BASE, OVERRIDE = "base", "--set "
# Keys whose value is a path. A value that may also be something else (a hub's model, an S3 address) is checked for it.
PATHS = (
    "home",
    "policy.path",
    "agent.folder",
    "environments.*.train",
    "environments.*.held_out",
    "environments.*.corpus",
    "engine.environment",
    "update.loss.teacher",
    "storage.root",
)
# A mapping from names of the user's: a recipe leaves out those of its base that it does not name.
NAMED = "environments"

Tree = dict[str, Any]


class _Sources:
    """The source of a key, empty if unknown, and the sources of the keys below it."""

    def __init__(self) -> None:
        self.name = ""
        self.below: dict[str, _Sources] = {}

    def at(self, dotted: str) -> "_Sources":
        """Return the node of a key below this one, which is made if there is none."""
        node = self
        for part in dotted.split("."):
            node = node.below.setdefault(part, _Sources())
        return node

    def names(self) -> list[str]:
        """Return where the keys below come from."""
        names, left = [], [*reversed(self.below.values())]
        while left:
            node = left.pop()
            names += [node.name] if node.name else []
            left += reversed(node.below.values())
        return names


class RecipeTree:
    """Settings as nested mappings; `source` returns the file or override from which a key came."""

    def __init__(self, files: list[Path]) -> None:
        """Make a tree. `files` are the recipe's own and those of its bases, nearest first."""
        self.settings: Tree = {}
        self._files = files
        self._sources = _Sources()

    @classmethod
    def read(cls, path: Path, find: Callable[[str, Path], Path], usual: Mapping[str, Any] | None = None) -> "RecipeTree":
        """Return the recipe in a file, on top of the recipe that its key `base` names. `find` gives the file of a name in a
        recipe of some folder; `usual` are settings below all of them. Raises ConfigError.
        """
        chain: list[tuple[Path, Tree]] = []
        following: Path | None = path.absolute()
        while following is not None:
            if following in [earlier for earlier, _ in chain]:
                raise ConfigError(f"recipe {following} is its own base; take `{BASE}` out of one of {_names(chain)}")
            settings = _read(following)
            base = settings.pop(BASE, None)
            chain.append((following, settings))
            if base is not None and not isinstance(base, str):
                raise ConfigError(f"{BASE} in {following} must be a recipe's name or path; it is {base!r}")
            following = find(base, following.parent).absolute() if base is not None else None
        tree = cls([file for file, _ in chain])
        tree.settings |= deepcopy(dict(usual or {}))
        for file, settings in reversed(chain):
            anchor(settings, file.parent)
            tree._lay(tree.settings, settings, str(file), "")
        return tree

    def override(self, assignments: list[str]) -> None:
        """Apply `a.b=c` each; a section's kind first, so that the order does not matter. Raises ConfigError."""
        for assignment in sorted(assignments, key=lambda each: not each.partition("=")[0].endswith(".kind")):
            key, equals, text = assignment.partition("=")
            keys = key.split(".")
            if not equals or not all(keys):
                raise ConfigError(f"--set {assignment!r} must look like section.key=value")
            if key == BASE:
                raise ConfigError(f"--set {assignment!r}: a base belongs in a recipe's file; name that recipe instead")
            try:
                value = yaml_value(text)
            except ValueError as error:
                raise ConfigError(f"--set {assignment!r}: the value is not YAML: {error}") from error
            nested: Tree = value
            for each in reversed(keys):
                nested = {each: nested}
            anchor(nested, Path.cwd())
            self._assign(keys, nested, assignment)

    def source(self, keys: list[str]) -> str:
        """Return the file or override that set the value at `keys` or a section that contains it; else the recipe's own file.

        A fault of a section as a whole most likely comes from the overrides below it, else from the recipe nearest to the user
        that sets something in it.
        """
        below = self._sources.at(".".join(keys)).names()
        if overrides := [source for source in below if source.startswith(OVERRIDE)]:
            return " ".join(dict.fromkeys(overrides))
        if files := [str(file) for file in self._files if str(file) in below]:
            return files[0]
        for length in range(len(keys), 0, -1):
            if found := self._sources.at(".".join(keys[:length])).name:
                return found
        return str(self._files[0])

    def values(self, paths: Iterable[str]) -> Iterator[tuple[list[str], Any]]:
        """Yield the values at these keys, each with its keys; a `*` is each key of a mapping."""
        left: list[tuple[list[str], Any, list[str]]] = [([], self.settings, path.split(".")) for path in paths]
        while left:
            keys, section, path = left.pop()
            if not path:
                yield keys, section
            elif isinstance(section, dict):
                names = [*section] if path[0] == "*" else [path[0]]
                left += [([*keys, name], section[name], path[1:]) for name in names if name in section]

    def _assign(self, keys: list[str], nested: Tree, assignment: str) -> None:
        section = self.settings
        for depth, key in enumerate(keys[:-1]):
            if section.get(key) is None:
                section[key] = {}
            section, nested = section[key], nested[key]
            if not isinstance(section, dict):
                raise ConfigError(f"--set {assignment!r}: {'.'.join(keys[: depth + 1])!r} is a value, not a section")
        value = nested[keys[-1]]
        if keys[-1] == "kind" and section.get("kind") != value:
            section.clear()  # the other keys are of another kind, which one without a name is too
            self._set_by(".".join(keys[:-1]), f"{OVERRIDE}{assignment}")
        section[keys[-1]] = value
        self._set_by(".".join(keys), f"{OVERRIDE}{assignment}")

    def _set_by(self, dotted: str, source: str, value: Any = None) -> None:
        """Note that a key and all below it come from `source` now."""
        top = self._sources.at(dotted)
        top.below = {}
        left = [(top, value)]
        while left:
            node, each = left.pop()
            node.name = source
            left += [(node.at(str(name)), below) for name, below in each.items()] if isinstance(each, dict) else []

    def _lay(self, below: Tree, above: Mapping[str, Any], source: str, prefix: str) -> None:
        """Lay the settings of one file over those of its bases: key by key, but a section of another kind whole."""
        for key, value in above.items():
            dotted, existing = f"{prefix}{key}", below.get(key)
            if (
                isinstance(value, dict)
                and isinstance(existing, dict)
                and value.get("kind", existing.get("kind")) == existing.get("kind")
            ):
                if dotted == NAMED:
                    for name in [name for name in existing if name not in value]:
                        del existing[name]
                self._lay(existing, value, source, f"{dotted}.")
            else:
                below[key] = value
                self._set_by(dotted, source, value)


def _read(path: Path) -> Tree:
    try:
        tree = yaml_value(content(path).decode())
    except ValueError as error:
        raise ConfigError(f"recipe {path} is not YAML: {error}") from error
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror or error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"recipe {path} must be a YAML mapping of settings")
    return tree


def anchor(settings: Tree, folder: Path, paths: Iterable[str] = PATHS) -> None:
    """Make `paths` in `settings` absolute: they are meant from `folder`. A `*` is each value of a mapping or item of a list."""
    for dotted in paths:
        *keys, last = dotted.split(".")
        sections: list[Any] = [settings]
        for key in keys:
            sections = [each for section in sections for each in _below(section, key)]
        for section in sections:
            hub = isinstance(section, dict) and section.get("kind") == "hub"  # there a split, not a file
            if isinstance(section, dict) and not hub and isinstance(section.get(last), str) and section[last]:
                section[last] = _absolute(dotted, section[last], folder)


def _below(section: Any, key: str) -> list[Any]:
    if isinstance(section, dict):
        return list(section.values()) if key == "*" else [section.get(key)]
    return section if isinstance(section, list) and key == "*" else []


def _absolute(key: str, text: str, folder: Path) -> str:
    if "://" in text:
        return text
    path = expanded(text)
    meant = path if path.is_absolute() else Path(folder, path)
    hub = key == "policy.path" and text.count("/") == 1 and text[0] not in "./~" and not meant.exists()
    run = key == "update.loss.teacher" and "/" not in text and not meant.exists()
    return text if hub or run else str(meant.resolve() if key == "policy.path" else meant.absolute())


def _names(chain: list[tuple[Path, Tree]]) -> str:
    return ", ".join(str(path) for path, _ in chain)
