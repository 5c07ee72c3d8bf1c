"""Stored settings that reach beyond their run act for a user who began something with them, gives them, or trusts them."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from pydantic import BaseModel

from nbrl.flows.ask.equipment import of_run
from nbrl.flows.deployed import TrainOrder
from nbrl.flows.deployments import DeployOptions, deployments_of
from nbrl.flows.evaluation_plan import planned
from nbrl.flows.evaluation_request import EvaluationRequest
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.opening import open_run
from nbrl.tasks.runs.recipes import load, trusted_config
from nbrl.tasks.runs.run import find_run
from nbrl.tasks.runs.trust import OWN, REACHING, TASKSETS
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.start import training_of

MCP = ["rollout.tools.mcp.tool.command=[touch, made]", "rollout.tools.default=[tool]"]
SETTINGS = {
    "home": "home=other-home",
    "agent.command": "agent={kind: program, command: [touch, made]}",
    "agent.folder": "agent={kind: program, command: [touch, made], folder: /etc}",
    "rollout.tools.mcp.tool.command": MCP,
    "rollout.tools.mcp.tool.environment": [*MCP, "rollout.tools.mcp.tool.environment=[AWS_SECRET_ACCESS_KEY]"],
    "rollout.tools.mcp.tool.url": ["rollout.tools.mcp.tool.url=https://example.org/", "rollout.tools.default=[tool]"],
    "rollout.tools.mcp.tool.headers": [
        "rollout.tools.mcp.tool.url=https://example.org/",
        "rollout.tools.mcp.tool.headers={X-Key: AWS_SECRET_ACCESS_KEY}",
        "rollout.tools.default=[tool]",
    ],
    "rollout.tools.own.weigh": ["rollout.tools.own.weigh=antigravity:geohash", "rollout.tools.default=[weigh]"],
    "sandbox.memory_mb": "sandbox.memory_mb=100000",
    "sandbox.max_processes": "sandbox.max_processes=100000",
    "sandbox.workspace_mb": "sandbox.workspace_mb=100000",
    "sandbox.require": "sandbox.require=[namespaces, no_capabilities, no_network]",
    "sandbox.unprivileged_uid": "sandbox.unprivileged_uid=1000",
    "rollout.tools.search.engine": "rollout.tools.search={engine: exa}",
    "rollout.tools.read_page.reader": "rollout.tools.read_page={reader: jina}",
    "rollout.tools.search.base_url": "rollout.tools.search={engine: serper, base_url: 'https://example.org'}",
    "rollout.tools.search.model.base_url": (
        "rollout.tools.search={engine: simulated, model: {base_url: 'https://example.org/v1', name: m}}"
    ),
    "rollout.tools.search.model.key": (
        "rollout.tools.search={engine: simulated, model: {base_url: 'https://example.org/v1', name: m, key: SECRET}}"
    ),
    "rollout.tools.read_page.base_url": "rollout.tools.read_page={reader: jina, base_url: 'https://example.org'}",
    "rollout.tools.model.base_url": "rollout.tools.model={base_url: 'https://example.org/v1', name: m}",
    "rollout.tools.model.key": "rollout.tools.model={base_url: 'https://example.org/v1', name: m, key: SECRET}",
    "reward.judge.base_url": "reward.judge={base_url: 'https://example.org/v1', name: m}",
    "reward.judge.key": "reward.judge={base_url: 'https://example.org/v1', name: m, key: SECRET}",
    "update.loss.teacher": ["update.loss={kind: distill, teacher: 'http://example.org'}", "select.drop_rate=0"],
    "update.loss.key": ["update.loss={kind: distill, teacher: 'http://example.org', key: SECRET}", "select.drop_rate=0"],
    "engine.environment": "engine.environment=elsewhere",
    "engine.extra_args": "engine.extra_args={trust-remote-code: ''}",
    "sandbox.environment": "sandbox.environment=elsewhere",
    "ray.address": "ray.address='example.org:6379'",
    "ray.forward": ["ray.address='example.org:6379'", "ray.forward=[AWS_SECRET_ACCESS_KEY]"],
    "nodes.cache": "nodes.cache=elsewhere",
    "tracking.uri": "tracking.uri=https://example.org",
    "tracking.artifacts": "tracking.artifacts=elsewhere",
    "tracking.tensorboard": "tracking.tensorboard=elsewhere",
    "tracking.wandb.project": "tracking.wandb={project: p, mode: online}",
    "tracking.wandb.entity": "tracking.wandb={project: p, mode: online, entity: other}",
    "tracking.wandb.mode": "tracking.wandb={project: p, mode: online}",
    "tracking.wandb.folder": "tracking.wandb={project: p, mode: offline, folder: elsewhere}",
    "environments.odd.command": "environments.odd={kind: openenv, command: [serve, '{port}']}",
    "environments.odd.url": "environments.odd={kind: openenv, url: 'https://example.org'}",
    "environments.odd.place": "environments.odd={kind: own, place: 'antigravity:Tasks'}",
    "environments.odd.settings": "environments.odd={kind: own, place: 'antigravity:Tasks', settings: {a: 1}}",
    "environments.odd.taskset": "environments.odd={kind: verifiers, taskset: antigravity}",
    "environments.odd.held_out_settings": (
        "environments.odd={kind: verifiers, taskset: antigravity, settings: {fn: os.getcwd}, held_out_settings: {a: 1}}"
    ),
    "environments.odd.environment": "environments.odd={kind: verifiers, taskset: antigravity, environment: elsewhere}",
}
# Texts that are read, compared or said, but start nothing, ask no server and name no folder that is written. Of files of
# questions a run keeps a copy.
WORDS = {
    *("name", "policy.path", "policy.revision", "storage.root", "tracking.experiment", "update.lora.target_modules"),
    *("environments.*.columns", "environments.*.configuration", "environments.*.corpus", "environments.*.dataset"),
    *("environments.*.held_out", "environments.*.prompt", "environments.*.tasks", "environments.*.tools", "environments.*.train"),
    *("environments.*.text", "environments.*.tool_parser"),
    *("agent.system_prompt", "agent.template_arguments", "agent.think_tag", "agent.tool_parser"),
    *("rollout.tools.default", "rollout.tools.abilities", "rollout.tools.mcp.*.tools", "rollout.tools.model.name"),
    *("rollout.tools.search.model.name", "reward.judge.name", "reward.judge.rubric", "sandbox.preload"),
    *("engine.resources", "rollout.resources", "update.resources"),
}


SMALL = ["environments.world.train=8", "environments.world.held_out=4", "rollout.prompts=4"]


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return Storage(load("tiny-cpu").storage)


def stranger(storage: Storage, *overrides: str) -> RunConfig:
    """Put a run `r` with these settings on the storage, as a copy would, and return its settings."""
    config, name = load("tiny-cpu", [*SMALL, *overrides]).model_copy(update={"storage": storage.settings}), "r"
    run = find_run(storage, name) or open_run(load("tiny-cpu", SMALL), name, storage)[0]
    storage.write_json(run.layout.identity, run.model_dump(mode="json") | {"config": config.model_dump(mode="json")})
    return config


def warmstart_after(run: str) -> WarmstartSettings:
    """Return the settings of a warm start for the agent of a run."""
    phases = {"one": {"demonstrations": {"world": {"kind": "world"}}}}
    return WarmstartSettings(start="model", training=f"runs/{run}", phases=phases)


def overrides(key: str) -> list[str]:
    given = SETTINGS[key]
    return [given] if isinstance(given, str) else given


@pytest.mark.parametrize("key", SETTINGS)
@pytest.mark.attack(
    tried="Start a program, import code, send a key, write to a folder by the stored settings of a run",
    wall="settings that this user never worked with act with `--trust` alone",
    effect="each is named; nothing started",
)
def test_a_setting_that_reaches_beyond_a_strangers_run_is_named_and_refused(storage: Storage, key: str) -> None:
    config = stranger(storage, *overrides(key))
    with pytest.raises(ConfigError, match=rf"(?s)run 'r' was begun by another user .*\n  {re.escape(key)}[.:].*\ngive --trust"):
        trusted_config(storage, "r", [], trust=False)
    assert trusted_config(storage, "r", overrides(key), trust=False) == config  # given by this user
    assert trusted_config(storage, "r", [], trust=True) == config
    assert trusted_config(storage, "r", [], trust=False) == config  # remembered


@pytest.mark.parametrize("name", ["train", "held_out", "corpus", "dataset"])
@pytest.mark.attack(
    tried="A tool, a header or a flag that has the name of a setting that a run's copy replaces",
    wall="settings are distinguished by their whole keys",
    effect="it is named; nothing started",
)
def test_no_name_passes_for_a_setting_of_which_the_run_has_a_copy(storage: Storage, name: str) -> None:
    for given in (
        [f"rollout.tools.own.{name}=antigravity:geohash", f"rollout.tools.default=[{name}]"],
        [f"engine.extra_args.{name.replace('_', '-')}=x"],
        [
            "rollout.tools.mcp.tool.url=https://example.org/",
            f"rollout.tools.mcp.tool.headers={{{name}: SECRET}}",
            "rollout.tools.default=[tool]",
        ],
    ):
        stranger(storage, *given)
        with pytest.raises(ConfigError, match=rf"\.{name.replace('_', '.')}: "):
            trusted_config(storage, "r", [], trust=False)


@pytest.mark.parametrize("key", ["rollout.tools.default", "rollout.tools.abilities.qa", "environments.world.tools"])
def test_a_tool_that_reads_the_web_is_named(storage: Storage, key: str) -> None:
    stranger(storage, f"{key}=[read_page]")
    with pytest.raises(ConfigError, match=rf'\n  {re.escape(key)}: "read_page"'):
        trusted_config(storage, "r", [], trust=False)


def test_questions_that_are_read_anew_are_named_though_there_is_a_copy(storage: Storage, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text("".join(f'{{"question": "{n}?", "answers": "{n}"}}\n' for n in range(16)))
    stranger(storage, f"environments={{mine: {{kind: files, train: {secret}, held_out: {secret}}}}}")
    storage.write_bytes(RunLayout("r").data.digests, b"{}")
    trusted_config(storage, "r", [], trust=False)
    with pytest.raises(ConfigError, match=r"\n  environments\.mine\.train: .*secret\.jsonl"):
        trusted_config(storage, "r", [], trust=False, anew=True)


def test_every_kind_of_setting_that_reaches_is_among_those_that_were_tried() -> None:
    assert {re.sub(r"\.(tool|weigh|odd)\b", ".*", key) for key in SETTINGS} == {*REACHING, *OWN, *TASKSETS}


@pytest.mark.parametrize(
    ("key", "given"),
    [
        ("engine.extra_args", "engine.extra_args.log-level=info"),
        ("rollout.tools.mcp.tool.headers", "rollout.tools.mcp.tool.headers.Other=HOME"),
        ("environments.odd.settings", "environments.odd.settings.b=2"),
    ],
)
def test_a_value_that_a_user_adds_beside_a_strangers_trusts_only_itself(storage: Storage, key: str, given: str) -> None:
    stranger(storage, *overrides(key))
    with pytest.raises(ConfigError, match=rf"\n  {re.escape(key)}\."):
        trusted_config(storage, "r", [given], trust=False)


def test_files_of_this_machine_are_not_read_for_a_run_that_lost_its_questions(storage: Storage) -> None:
    Path("secret.csv").write_text("question,answers\nq?,hunter2\n", encoding="utf-8")
    config = stranger(storage, "environments.mine={kind: files, train: secret.csv, held_out: secret.csv}")
    assert trusted_config(storage, "r", [], trust=False) == config  # it has a copy of its questions
    storage.delete(RunLayout("r").data.digests)
    with pytest.raises(ConfigError, match=r"(?s)environments\.mine\.held_out: .*secret\.csv.*environments\.mine\.train: "):
        trusted_config(storage, "r", [], trust=False)


@pytest.mark.attack(
    tried="A stored run whose questions are at an address, to have it read by the keys of the user who goes on with it",
    wall="an address is asked about as a path is; a run that has its questions reads none",
    effect="it is named; nothing is asked",
)
def test_addresses_of_questions_are_asked_about_before_the_users_keys_read_them(storage: Storage) -> None:
    address = "s3://private/q.jsonl"
    stranger(storage, f"environments.mine={{kind: files, train: '{address}', held_out: '{address}'}}")
    trusted_config(storage, "r", [], trust=False)  # it has a copy of its questions
    settings = warmstart_after("r")
    with pytest.raises(ConfigError, match=rf"\n  environments\.mine\.held_out: \"{address}\"\n  environments\.mine\.train: "):
        training_of(settings, storage)  # which reads the questions anew
    storage.delete(RunLayout("r").data.digests)
    with pytest.raises(ConfigError, match=rf"\n  environments\.mine\.held_out: \"{address}\"\n  environments\.mine\.train: "):
        trusted_config(storage, "r", [], trust=False)
    assert training_of(settings, storage, trust=True).environments["mine"].held_out == address


def test_a_run_of_this_users_own_goes_on_by_itself_and_one_without_such_settings_is_anybodys(storage: Storage) -> None:
    own = load("tiny-cpu", [*SMALL, "home=other-home", "engine.environment=elsewhere"])
    open_run(own, "mine", storage)
    assert trusted_config(storage, "mine", ["iterations=3"], trust=False).iterations == 3
    plain = stranger(storage, "update.lr=0.5")
    assert trusted_config(storage, "r", [], trust=False) == plain


def test_a_command_that_was_changed_is_asked_about_again_and_another_setting_beside_it_changes_nothing(storage: Storage) -> None:
    stranger(storage, *MCP)
    trusted_config(storage, "r", [], trust=True)
    stranger(storage, "rollout.tools.mcp.tool.command=[touch, other]", "rollout.tools.default=[tool]")
    for given in (list[str](), ["rollout.tools.mcp.tool.timeout_s=5"]):
        with pytest.raises(ConfigError, match=r"tool\.command: .*other"):
            trusted_config(storage, "r", given, trust=False)


def test_what_acts_alone_is_asked_about(storage: Storage) -> None:
    stranger(storage, *MCP)
    trusted_config(storage, "r", [], trust=False, used=("home", "tracking"))
    with pytest.raises(ConfigError, match="begun by another user"):
        trusted_config(storage, "r", [], trust=False, used=("home", "rollout.tools"))


def test_a_refusal_shows_no_more_than_a_screen(storage: Storage) -> None:
    many = ",".join(f"tool{number}: {{command: ['{'x' * 500}']}}" for number in range(50))
    names = ",".join(f"tool{number}" for number in range(50))
    stranger(storage, f"rollout.tools.mcp={{{many}}}", f"rollout.tools.default=[{names}]")
    with pytest.raises(ConfigError, match="and 42 more") as refused:
        trusted_config(storage, "r", [], trust=False)
    assert len(str(refused.value)) < 2_000


def test_where_nothing_can_be_remembered_the_user_is_asked_each_time(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("state").write_text("a file", encoding="utf-8")
    stranger(storage, *MCP)
    trusted_config(storage, "r", [], trust=True)
    with pytest.raises(ConfigError, match="begun by another user"):
        trusted_config(storage, "r", [], trust=False)


@pytest.mark.attack(
    tried="The same settings, by each command and flow that goes on with a run",
    wall="one check, where stored settings become those of work",
    effect="each is named; nothing started",
)
def test_every_way_to_go_on_with_a_stored_run_asks(storage: Storage) -> None:
    stranger(storage, *MCP)
    root = storage.settings.root
    for begin in (
        lambda: TrainOrder(run="r", root=root).start(),
        lambda: planned(EvaluationRequest(model="r", root=root)),
        lambda: deployments_of(DeployOptions(run="r", root=root)),
        lambda: deployments_of(DeployOptions(kind="evaluate", run="r", root=root)),
        lambda: of_run(storage, "r", None, (), None, False, print).__enter__(),
        lambda: training_of(warmstart_after("r"), storage),
    ):
        with pytest.raises(ConfigError, match=r"begun by another user .*\n  rollout\.tools\.mcp\.tool\.command: "):
            begin()
    assert not Path("made").exists()


def test_every_text_of_a_configuration_is_known_to_reach_or_not() -> None:
    """A setting that is added is put into trust.py, or here."""
    reaching = {key.removesuffix(".*") for key in (*REACHING, *OWN, *TASKSETS)}
    assert set(texts(RunConfig, "")) - reaching == WORDS


def texts(model: type[BaseModel], above: str) -> Iterator[str]:
    """The keys below a section whose values hold text of any kind."""
    for name, field in model.model_fields.items():
        yield from _texts(field.annotation, f"{above}{name}")


def _texts(annotation: Any, key: str) -> Iterator[str]:
    origin, members = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return
    if origin is Annotated:
        yield from _texts(members[0], key)
    elif isinstance(annotation, type) and origin is None and issubclass(annotation, BaseModel):
        yield from texts(annotation, f"{key}.")
    elif annotation is str or annotation is Any or (isinstance(annotation, type) and issubclass(annotation, Path)):
        yield key
    elif origin is dict and _is_section(members[1]):
        yield from _texts(members[1], f"{key}.*")
    else:
        for each in members:
            yield from _texts(each, key)


def _is_section(annotation: Any) -> bool:
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return issubclass(annotation, BaseModel)
    return any(_is_section(each) for each in get_args(annotation))
