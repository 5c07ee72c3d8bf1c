"""Recipes: YAML files and overrides to a checked RunConfig, with errors a person can act on."""

import difflib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from tasks.config import RunConfig
from tasks.errors import ConfigError

FOLDER = Path(__file__).resolve().parent.parent / "infra" / "recipes"


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(recipe: str) -> Path:
    """A recipe by name or by path."""
    named = FOLDER / f"{recipe}.yaml"
    with suppress(OSError):  # a name too long to be a path
        path = named if named.is_file() else Path(recipe)
        if path.is_file():
            return path
    near = difflib.get_close_matches(recipe, names(), 1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names())}; or give the path of a YAML file."
    raise ConfigError(f"there is no recipe {recipe!r}; {hint}")


def load(recipe: str, overrides: Iterable[str] = ()) -> RunConfig:
    """The recipe's RunConfig with `a.b=c` overrides applied. Raises ConfigError naming file, key and remedy."""
    path = find(recipe)
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"recipe {path} is not YAML: {error}") from error
    except OSError as error:
        raise ConfigError(f"recipe {path} cannot be read: {error.strerror}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"recipe {path} must be a YAML mapping of settings")
    for override in overrides:
        _set(tree, override)
    _resolve(tree, path.parent)
    try:
        return RunConfig.model_validate({"name": path.stem, **tree})
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(problem, str(path)) for problem in error.errors()[:5])) from error


def _set(tree: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not all(key.split(".")):
        raise ConfigError(f"--set {override!r} must look like section.key=value")
    *sections, last = key.split(".")
    for section in sections:
        below = tree.setdefault(section, {})
        if not isinstance(below, dict):
            raise ConfigError(f"--set {override!r}: {section!r} is a value, not a section")
        tree = below
    try:
        tree[last] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set {override!r}: the value is not YAML: {error}") from error


def _resolve(tree: dict[str, Any], folder: Path) -> None:
    """A policy path that starts with a dot is meant from the recipe's folder."""
    policy = tree.get("policy")
    if isinstance(policy, dict) and str(policy.get("path", "")).startswith(("./", "../")):
        beside = (folder / policy["path"]).resolve()
        if beside.is_dir():
            policy["path"] = str(beside)


def _explain(problem: Any, where: str) -> str:
    keys = [str(part) for part in problem["loc"]]
    model, keys = _walk(keys)
    dotted = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        known = list(model.model_fields)
        near = difflib.get_close_matches(keys[-1], known, 1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(known))}."
        return f"unknown key {dotted!r} in {where}; {hint}"
    if problem["type"] == "missing":
        return f"{where} lacks {dotted!r}; set it."
    return f"{dotted or 'the configuration'} in {where}: {problem['msg']} (it is {problem['input']!r})"


def _walk(keys: list[str]) -> tuple[type[BaseModel], list[str]]:
    """The settings model whose field the last key should be, and the keys as a person wrote them, without tags of unions."""
    model: type[BaseModel] = RunConfig
    members: list[type[BaseModel]] = []
    written = []
    for key in keys:
        tagged = [member for member in members if key in _tags(member)]
        if tagged:
            model = tagged[0]
            continue
        written.append(key)
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        members = [m for m in (annotation, *get_args(annotation)) if isinstance(m, type) and issubclass(m, BaseModel)]
        model = members[0] if members else model
    return model, written


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    return get_args(model.model_fields["kind"].annotation) if "kind" in model.model_fields else ()
