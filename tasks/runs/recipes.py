"""Makes a checked RunConfig from a recipe's YAML files and overrides, with errors that say what to do."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from nbrl.infra import own_code
from nbrl.infra.closed import idle_settings
from nbrl.infra.parse import yaml_value
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import is_mapping
from nbrl.tasks.runs.decisive import members as members_of
from nbrl.tasks.runs.epochs import newest_settings
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.recipe_tree import OVERRIDE, RecipeTree
from nbrl.tasks.runs.run import Kind, known_run
from nbrl.tasks.runs.trust import check_trusted

FOLDER = Path(__file__).resolve().parents[2] / "infra" / "recipes"
Settings = TypeVar("Settings", bound=BaseModel)
OWN_CODE = ("rollout.tools.own.*", "environments.*.place", "environments.*.taskset")  # as `module:name`, or `module`
SHOWN = 3  # problems reported at once
SHOWN_CHARS = 80  # of a value
# Keys that users of other programs, or of earlier drafts of this one, may try.
INSTEAD = {
    "agent.code_tag": "a cell is written inside <code></code>; for a block of Markdown set agent.code_style to fence",
    "agent.summary_prompt": "it is a part of nbrl; set agent.summary_tokens for other lengths",
    "publish.rounding": "set publish.dtype to float32 where the engine must follow each small step",
    "rollout.tools.search.noise_start": "set noise, for example noise=[0, 0.5]",
    "rollout.tools.search.noise_end": "set noise, for example noise=[0, 0.5]",
    "rollout.tools.search.noise_base": "it is 4; set noise and noise_iterations",
    "rollout.tools.search.documents": "there are 5",
    "rollout.tools.search.words": "there are about 30",
    "sandbox.cell_timeout_s": "set agent.cell_timeout_s",
    "sandbox.collect_files": "a run reads the files that questions name; set sandbox.collect_file_bytes for their size",
    "sandbox.collect_bytes": "a run reads the files that questions name; set sandbox.collect_file_bytes for their size",
    **{
        f"sandbox.{key}": f"it is {value} in every run; programs that use kernels without a run set it in KernelLimits"
        for key, value in {
            "start_timeout_s": "60",
            "interrupt_grace_s": "2",
            "image_bytes": "1 MB",
            "images": "4",
            "expression_bytes": "256 kB",
            "message_bytes": "2 MB",
            "call_bytes": "1 MB",
            "calls_per_s": "50",
        }.items()
    },
    "update.kl_clamp": "it is 10",
    "engine.base_seed": "engine i samples with seed i; set engine.seeded_sampling to draw each request by the run's seed",
    "ray.object_store_mb": "it is 200",
    "replies": "set ratings, a folder",
    "filter": "set min_objectivity and min_stability in rate, min_pass_rate and max_pass_rate in difficulty",
    "rate.model": "set rate.name",
    "rate.key_variable": "set rate.key",
    "rate.temperature": "it is 0",
    "rate.seeded": "a seed is always sent",
    **{
        f"difficulty.{key}": "name an evaluation by difficulty.evaluation, made by `nbrl evaluate … --samples 8 --name NAME`"
        for key in ("base_url", "model", "name", "key_variable", "samples", "temperature", "concurrency", "max_tokens", "seeded")
    },
}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(recipe: str, folder: Path | None = None) -> Path:
    """Find a recipe by name or by path, which is relative to `folder` or else to the current folder."""
    named = FOLDER / f"{recipe}.yaml"
    place = Path(folder or Path.cwd(), recipe)
    with suppress(OSError, ValueError):  # a name that cannot be a path
        path = named if named.is_file() else Path(folder or Path.cwd(), expanded(recipe))
        if path.is_file():
            return path
    hint = did_you_mean(recipe, names(), f"there are: {', '.join(names())}; or give the path of a YAML file.")
    where = f", and no file {place}" if folder or "/" in recipe or recipe.endswith((".yaml", ".yml")) else ""
    named_by = f", which a recipe in {folder} names as its base" if folder else ""
    raise ConfigError(f"there is no recipe {recipe!r}{named_by}{where}; {hint}")


def load(recipe: str, overrides: Iterable[str] = (), usual: Mapping[str, Any] | None = None) -> RunConfig:
    """Load the recipe's RunConfig with `a.b=c` overrides. Raises ConfigError naming file or override, key and remedy.

    Paths in a recipe are relative to its folder, paths in an override to the current folder. `usual` is below all of it.
    """
    path = find(recipe)
    tree = RecipeTree.read(path, find, usual)
    tree.override(list(overrides))
    tree.settings.setdefault("name", path.stem)
    _find_own_code(tree, of_files=True)
    return _checked(RunConfig, tree)


def _find_own_code(tree: RecipeTree, of_files: bool) -> None:
    """Let modules that `--set` names be found in the current folder, and those that files of the recipe name beside these, by
    this process and those that it starts.
    """
    for keys, place in tree.values(OWN_CODE):
        source = tree.source(keys)
        by_set = source.startswith(OVERRIDE)
        if isinstance(place, str) and (by_set or of_files):
            own_code.look(place, Path.cwd() if by_set else Path(source).parent)


def from_settings(settings: type[Settings], values: Mapping[str, Any], source: str, overrides: Iterable[str]) -> Settings:
    """Return the configuration of `values`, which come from `source`, with `a.b=c` overrides applied. Raises ConfigError naming
    override, key and remedy.
    """
    tree = RecipeTree([Path(source)])
    tree.settings |= deepcopy(dict(values))
    tree.override(list(overrides))
    _find_own_code(tree, of_files=False)  # the values may be of a storage, whose code is never looked for
    return _checked(settings, tree)


def with_home(home: str | None, overrides: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the overrides, after that of a home that was given beside them. Raises ConfigError where both name one."""
    given = tuple(overrides)
    if home is None:
        return given
    if twice := [each for each in given if "home" in _keys_of(each)]:
        raise ConfigError(f"--home {home} and --set {twice[0]} both name the home; leave one of them out")
    return (f"home={json.dumps(home)}", *given)


def check_acting(overrides: Iterable[str], acting: Sequence[str], idle: Sequence[str] = ()) -> None:
    """Raises ConfigError for an override that a command does not use: `acting` are keys or sections in use, but for `idle`."""

    def among(key: str, keys: Sequence[str]) -> bool:
        return any(key == each or key.startswith(f"{each}.") for each in keys)

    for override in overrides:
        for key in _keys_of(override):
            if not among(key, acting) or among(key, idle):
                but = f", but for {', '.join(idle)}" if idle else ""
                raise ConfigError(f"--set {override}: only settings of {', '.join(acting)} act here{but}")


def _keys_of(override: str) -> list[str]:
    """Return the keys that an override sets, also those of a section that it gives as a whole."""
    key, _, text = override.partition("=")
    try:
        left, keys = [(key, yaml_value(text))], list[str]()
    except ValueError:  # which is reported where it is read
        return [key]
    while left:
        place, value = left.pop()
        if isinstance(value, dict) and value:
            left += [(f"{place}.{name}", each) for name, each in value.items()]
        else:
            keys.append(place)
    return keys


def _checked(settings: type[Settings], tree: RecipeTree) -> Settings:
    try:
        checked = settings.model_validate(tree.settings)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(settings, error.errors(), tree)[:SHOWN])) from error
    if idle := [f"{tree.source(keys)}: {sentence}" for keys, sentence in idle_settings(checked)]:
        raise ConfigError("\n".join(idle[:SHOWN]))
    return checked


def _explain(settings: type[BaseModel], problems: list[Any], tree: RecipeTree) -> list[str]:
    """Return one sentence per problem; all missing keys of a section share one."""
    sentences, lacking = [], dict[str, list[str]]()
    for problem in problems:
        model, keys = _walk(settings, [str(part) for part in problem["loc"]])
        if problem["type"] == "missing":
            lacking.setdefault(tree.source(keys[:-1]), []).append(".".join(keys))
        else:
            sentences.append(_sentence(problem, model, keys, tree.source(keys)))
    return [
        f"{where} needs {' and '.join(keys)}; set {'it' if len(keys) == 1 else 'them'}." for where, keys in lacking.items()
    ] + sentences


def _sentence(problem: Any, model: type[BaseModel], keys: list[str], where: str) -> str:
    dotted = ".".join(keys)
    if problem["type"] == "extra_forbidden":
        remedy = INSTEAD.get(dotted) or did_you_mean(keys[-1], list(model.model_fields))
        return f"unknown key {dotted!r} in {where}; {remedy}"
    value = problem["input"]
    shown = f" (it is {value!r})" if not isinstance(value, dict | list) and len(repr(value)) <= SHOWN_CHARS else ""
    place = where if where.startswith("--set") and dotted in where else f"{dotted or 'the configuration'} in {where}"
    return f"{place}: {_words(problem)}{shown}"


def _words(problem: Any) -> str:
    """Return what is wrong, without pydantic's internal names."""
    match problem["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            tags = problem["ctx"].get("expected_tags", "")
            key = problem["ctx"]["discriminator"].strip("'")
            return f"{key} must be one of {tags}" if tags else f"{key} is missing; set it, see docs/settings.md for the kinds"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "this is a section of settings, not a value"
        case "path_type":
            return "this must be a path"
        case "tuple_type" | "list_type":
            return "this must be a list, such as [a, b]"
        case _:
            return str(problem["msg"].removeprefix("Value error, "))


def _walk(settings: type[BaseModel], keys: list[str]) -> tuple[type[BaseModel], list[str]]:
    """Return the settings model of the last key, and the keys as the user wrote them, without tags of unions."""
    model = settings
    members: list[type[BaseModel]] = []
    written = []
    named = False  # whether the next key is a name of the user's
    for key in keys:
        tagged = [member for member in members if key in _tags(member)]
        if tagged and not named:
            model = tagged[0]
            continue
        written.append(key)
        if named:
            named = False
            continue
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        named, members = is_mapping(annotation), members_of(annotation)
        model = members[0] if members else model
    return model, written


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """Return the values of the field that distinguishes a member of a union."""
    return tuple(
        tag for name in ("kind", "engine") if name in model.model_fields for tag in get_args(model.model_fields[name].annotation)
    )


def resumed_config(storage: Storage, name: str, overrides: Sequence[str], kind: Kind = RUNS) -> RunConfig:
    """Return the configuration of the last start of a run or evaluation, on this storage, with overrides applied: to read.

    To start anything by it, or to ask a server, take `trusted_config`. Raises ConfigError, also for an override that names
    another storage: the run is not there.
    """
    run = known_run(storage, name, kind)
    last = newest_settings(storage, run.layout)
    stored = stored_config(storage, run.model_copy(update={"config": last or run.config})).model_dump(mode="json")
    stored |= {"storage": storage.settings.model_dump(mode="json")}
    config = from_settings(RunConfig, stored, storage.uri(run.layout.config), overrides)
    if config.storage.root != storage.settings.root:
        raise ConfigError(
            f"storage.root is {config.storage.root} but {run.layout.title} is in {storage.settings.root}; leave it out, or copy "
            "the storage there and name it by --root"
        )
    return config


def trusted_config(
    storage: Storage,
    name: str,
    overrides: Sequence[str],
    trust: bool,
    kind: Kind = RUNS,
    used: tuple[str, ...] = ("",),
    anew: bool = False,
) -> RunConfig:
    """Return the same as `resumed_config`, to act by. Raises ConfigError unless the user trusts what its `used` sections reach:
    see trust.py.

    `anew`: questions are read again, though the run has a copy of them.
    """
    config = resumed_config(storage, name, overrides, kind)
    stored, layout = resumed_config(storage, name, (), kind), known_run(storage, name, kind).layout
    check_trusted(config, stored, overrides, layout.title, trust, used, not anew and storage.exists(layout.data.digests))
    return config
