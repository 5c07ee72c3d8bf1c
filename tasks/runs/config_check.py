"""Checks that the settings of a run fit together and match the files that they name."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.exchange import WAIT_S
from nbrl.agent.tools.library import own_tool
from nbrl.agent.tools.settings import SimulatedSearch
from nbrl.infra.own_code import where_looked
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.environments.stored import Contents
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.rule import GYM, JUDGE, NO_ANSWERS, OF_CLASSES, OF_SESSIONS
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.children import kernels_at_once
from nbrl.tasks.runs.check_recorded import check_recorded
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.gpu_memory import check_devices, check_learns, check_reads
from nbrl.tasks.runs.training_check import check_training

Purpose = Literal["train", "evaluate", "evaluate a server"]
OF_NOTEBOOKS = ("qa", "format", "execution", "length", "compat")  # settings of the reward
RAREST = 10_000  # prompts, of which every environment with a weight has one at least
# By rules that need more than this package: the module, the package that has it, and the extra that brings it.
PACKAGES = {"math": ("math_verify", "math-verify", "math"), GYM: ("reasoning_gym", "reasoning-gym", "gym")}


def check_config(config: RunConfig, purpose: Purpose = "train") -> dict[str, Tables]:
    """Load the environments and return what they give. Raises ConfigError for a configuration that cannot work.

    Reads files, but starts nothing.
    """
    loaded = stored.load(config.environments)
    contents = stored.contents_of(config.environments, loaded)
    check_with(config, purpose, contents)
    if purpose == "train":
        _check_weights(config)
    return loaded


def check_with(config: RunConfig, purpose: Purpose, contents: Mapping[str, Contents]) -> None:
    """Check as `check_config` does, with the contents of the environments. The number of questions stays as a run began."""
    # A server has its own model and engine: those of the settings are not used.
    if purpose != "evaluate a server":
        _check_policy(config, purpose)
    if (kernels := kernels_at_once(config.agent, config.rollout.episodes_per_runner)) > config.sandbox.max_live:
        children = " and children at each depth as many" if config.agent.children is not None else ""
        raise ConfigError(
            f"rollout.episodes_per_runner is {config.rollout.episodes_per_runner} but sandbox.max_live only "
            f"{config.sandbox.max_live}: every episode holds a kernel{children}; raise the latter to {kernels} or more"
        )
    _check_storage(config)
    rules = {rule for each in contents.values() for rule in each.rules}
    _check_packages(rules)
    _check_direct(config, contents)
    _check_sandbox(config)
    _check_program(config, purpose)
    _check_children(config, purpose, contents)
    _check_tools(config, contents)
    _check_judge(config, rules)
    if purpose == "train":
        check_recorded(config)
        _check_trainable(config, contents)
        check_devices(config.update, config.ray)
        check_training(config)


def _check_storage(config: RunConfig) -> None:
    """Check that the machines of a cluster that is joined can see the storage."""
    storage = config.storage
    if config.ray.address is not None and not storage.shared and Storage(storage).is_local:
        raise ConfigError(
            f"storage.root {storage.root} is a folder of this machine, which those of the cluster at ray.address may not see; "
            "give the root of a cloud such as s3://bucket/prefix, or set storage.shared to true if all of them see it there"
        )


def _check_policy(config: RunConfig, purpose: Purpose) -> None:
    """Check the policy against the limits of agent and engine and, before training, that the learner knows such a model."""
    is_here, limit = check_reads(config.policy, config.agent), config.agent.context_tokens
    if config.engine.max_total_tokens is not None and limit > config.engine.max_total_tokens:
        raise ConfigError(
            f"agent.context_tokens is {limit} but engine.max_total_tokens only {config.engine.max_total_tokens}; raise the latter"
        )
    if is_here and purpose == "train":
        check_learns(config.policy.path, config.update)


def _check_packages(rules: set[str]) -> None:
    for rule, (module, package, extra) in PACKAGES.items():
        if rule in rules and find_spec(module) is None:
            raise ConfigError(f"the rule {rule} needs the package {package}: pip install 'nbrl[{extra}]'")


def _check_direct(config: RunConfig, contents: Mapping[str, Contents]) -> None:
    for name, content in contents.items():
        if config.evaluate.mode == "direct" and content.rules & {*OF_SESSIONS}:
            raise ConfigError(
                f"evaluate.mode is direct, but the tasks of environments.{name} are done by calls in a session, for which a "
                "notebook is needed; set evaluate.mode to agent"
            )


def _check_program(config: RunConfig, purpose: Purpose) -> None:
    """Check that a program can be the agent: its folder is here, and the ids of its policy are known."""
    agent = config.agent
    if agent.kind != "program":
        return
    if purpose == "evaluate a server":
        raise ConfigError(
            "agent.kind is program, whose requests are answered by a policy of our own engines; leave --endpoint out, or set "
            "agent.kind to notebook"
        )
    if idle := [name for name in OF_NOTEBOOKS if getattr(config.reward, name) != RewardSettings.model_fields[name].default]:
        raise ConfigError(f"reward.{idle[0]} has no effect with agent.kind program, which earns by its answer; leave it out")
    if agent.folder is not None and not Path(agent.folder).is_dir():
        raise ConfigError(f"agent.folder {agent.folder} is no folder; name the one that the program is in")


def _check_children(config: RunConfig, purpose: Purpose, contents: Mapping[str, Contents]) -> None:
    """Check that children can be called, and learn from what the settings say."""
    children = config.agent.children
    if children is None:
        return
    if config.sandbox.call_timeout_s < 2 * WAIT_S:
        raise ConfigError(
            f"sandbox.call_timeout_s is {config.sandbox.call_timeout_s:g}, but a cell that awaits a child waits {WAIT_S:g} s "
            f"at a time; raise it to {2 * WAIT_S:g} or more"
        )
    for name, content in contents.items():
        if children.credit == "own" and not (content.rules <= {*OF_CLASSES} and config.environments[name].scores_children()):
            raise ConfigError(
                f"agent.children.credit is own, but environments.{name} has no class with a method score_child for all its "
                "questions; write it, or set agent.children.credit to parent"
            )
    if purpose != "train":
        return
    if config.rollout.branch is not None:
        raise ConfigError("rollout.branch plays cells again, and those that call children cannot be; leave out agent.children")
    if config.recorded is not None:
        raise ConfigError("agent.children has no effect with an environment of the kind recorded; leave it out")
    if children.credit != "none" and config.learner_estimates:
        raise ConfigError(
            f"agent.children.credit {children.credit} needs advantages that the rewards alone give, without a critic, "
            "advantage.per_ability and update.kl_in_reward; leave those out, or set agent.children.credit to none"
        )


def _check_sandbox(config: RunConfig) -> None:
    """Check that no limit of the sandbox cuts off a tool before its own."""
    limit = config.sandbox.call_timeout_s
    for key, timeout_s in _timeouts(config.rollout.tools.model_dump(exclude_defaults=True), "rollout.tools"):
        if timeout_s > limit:
            raise ConfigError(
                f"{key} is {timeout_s:g} but sandbox.call_timeout_s, which ends every call, only {limit:g}; raise the latter"
            )


def _timeouts(settings: Mapping[str, Any], key: str) -> Iterator[tuple[str, float]]:
    """Yield every `timeout_s` in the settings, by its key."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _timeouts(value, f"{key}.{name}")
        elif name == "timeout_s":
            yield f"{key}.{name}", value


def _check_tools(config: RunConfig, contents: Mapping[str, Contents]) -> None:
    tools = config.rollout.tools
    try:
        tools.check_used(name for each in config.environments.values() for name in each.tools or ())
    except ToolError as error:
        raise ConfigError(f"rollout.tools: {error}") from error
    for name, environment in config.environments.items():
        content = contents[name]
        otherwise = tools.default if environment.tools is None else environment.tools
        abilities = {each for table in (content.train, content.held_out) for each in table["ability"].unique().to_pylist()}
        searches = any("search" in (tools.abilities.get(ability, otherwise) or ()) for ability in abilities)
        if tools.search.engine == "corpus" and searches and not content.searchable:
            raise ConfigError(
                f"environments.{name} has the tool search but no corpus: set its corpus, its tools, or "
                "rollout.tools.search.engine"
            )
        if isinstance(tools.search, SimulatedSearch) and searches and content.rules & set(NO_ANSWERS):
            raise ConfigError(
                f"rollout.tools.search is simulated from a question's answers, which those of environments.{name} lack; set its "
                "tools, or another engine"
            )
    for name, place in tools.own.items():
        try:
            own_tool(name, place)
        except ToolError as error:
            raise ConfigError(f"rollout.tools.own: {error}{where_looked(place)}") from error


def _check_judge(config: RunConfig, rules: set[str]) -> None:
    if JUDGE in rules and config.reward.judge is None:
        raise ConfigError(
            "questions have the rule judge, but no model that grades their answers is named; set reward.judge.base_url and "
            "reward.judge.name, or another rule"
        )
    if JUDGE not in rules and config.reward.judge is not None:
        raise ConfigError("reward.judge has no effect, for no question has the rule judge; leave it out, or set this rule")


def _check_trainable(config: RunConfig, contents: Mapping[str, Contents]) -> None:
    for name, environment in config.environments.items():
        if environment.weight and not len(contents[name].train) and config.recorded is None:
            raise ConfigError(
                f"environments.{name} has no questions to train on; name some by its train, or set its weight to 0 to evaluate "
                "on it only"
            )


def _check_weights(config: RunConfig) -> None:
    """Check that each environment gets a share of the prompts."""
    total = sum(config.weights.values())
    if not total:
        raise ConfigError("every environment has weight 0, so there is nothing to train on; give one a weight")
    for name, weight in config.weights.items():
        if 0 < weight * RAREST < total:
            raise ConfigError(
                f"environments.{name}.weight is {weight:g} of {total:g}, so that it would have less than one of {RAREST} "
                "prompts; raise it, or set it to 0 to evaluate on it only"
            )
