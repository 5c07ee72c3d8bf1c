"""Checks that the settings of a run fit together and match the files that they name."""

from collections.abc import Mapping
from typing import Literal

from nbrl.agent.context.context import check_room
from nbrl.agent.errors import ContextError, ToolError
from nbrl.agent.policy import Sampling
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.library import own_tool
from nbrl.agent.tools.settings import SimulatedSearch
from nbrl.infra.gpu import gpus
from nbrl.tasks.advantage.settings import GROUP_RELATIVE, WITH_CRITIC
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.process.devices import on_cuda
from nbrl.tasks.learner.settings import RatioLoss, UpdateSettings
from nbrl.tasks.model_folder.check import check_model, check_targets
from nbrl.tasks.model_folder.source import local_config
from nbrl.tasks.reward.rules.rule import JUDGE, NO_ANSWERS
from nbrl.tasks.runs.config import RunConfig

Purpose = Literal["train", "evaluate"]


def check_config(config: RunConfig, purpose: Purpose = "train") -> None:
    """Raise ConfigError for a configuration that cannot work. Reads files, but starts nothing."""
    loaded = stored.load(config.environments)
    model = local_config(config.policy)
    limit = config.agent.context_tokens
    if model is not None and limit > model.get("max_position_embeddings", limit):
        raise ConfigError(
            f"agent.context_tokens is {limit} but the policy reads at most {model['max_position_embeddings']} tokens; lower it"
        )
    if model is not None:
        _check_tokens(config, model["vocab_size"])
    if config.engine.max_total_tokens is not None and limit > config.engine.max_total_tokens:
        raise ConfigError(
            f"agent.context_tokens is {limit} but engine.max_total_tokens only {config.engine.max_total_tokens}; raise the latter"
        )
    if config.rollout.episodes_per_runner > config.sandbox.max_live:
        raise ConfigError(
            f"rollout.episodes_per_runner is {config.rollout.episodes_per_runner} but sandbox.max_live only "
            f"{config.sandbox.max_live}: every episode holds a kernel; raise the latter"
        )
    _check_tools(config, loaded)
    _check_judge(config, stored.rules(loaded))
    if purpose == "train":
        if model is not None:
            _check_model(config.policy.path, config.update)
        _check_devices(config)
        _check_training(config, len(stored.mixed(config.environments, loaded, "train")))


def _check_devices(config: RunConfig) -> None:
    if config.ray.address is not None:  # known when it is joined
        return
    try:
        on_cuda(config.update, gpus() if config.ray.num_gpus is None else config.ray.num_gpus)
    except UpdateError as error:
        raise ConfigError(str(error)) from error


def _check_model(path: str, update: UpdateSettings) -> None:
    try:
        check_model(path)
        check_targets(path, update.lora.target_modules if update.lora else ())
    except UpdateError as error:
        raise ConfigError(f"policy.path: {error}") from error


def _check_tokens(config: RunConfig, vocabulary: int) -> None:
    tokenizer = ChatTokenizer.load(config.policy.path, config.agent)
    if tokenizer.vocab_size > vocabulary:
        raise ConfigError(
            f"policy.path {config.policy.path}: the tokenizer has more tokens than the model's vocab_size; they do not match"
        )
    try:
        check_room(tokenizer, config.agent, tools="")  # what is said of the tools is known when they are open
    except ContextError as error:
        raise ConfigError(str(error)) from error


def _check_tools(config: RunConfig, loaded: Mapping[str, Tables]) -> None:
    tools = config.rollout.tools
    try:
        tools.check_used(name for each in config.environments.values() for name in each.tools or ())
    except ToolError as error:
        raise ConfigError(f"rollout.tools: {error}") from error
    for name, environment in config.environments.items():
        asked = [row for split in stored.SPLITS for row in loaded[name].split(split).select(["ability", "rule"]).to_pylist()]
        otherwise = tools.default if environment.tools is None else environment.tools
        abilities = {row["ability"] for row in asked}
        searches = any("search" in (tools.abilities.get(ability, otherwise) or ()) for ability in abilities)
        if tools.search.engine == "corpus" and searches and not len(loaded[name].corpus):
            raise ConfigError(
                f"environments.{name} has the tool search but no corpus: set its corpus, its tools, or "
                "rollout.tools.search.engine"
            )
        if isinstance(tools.search, SimulatedSearch) and searches and {row["rule"] for row in asked} & set(NO_ANSWERS):
            raise ConfigError(
                f"rollout.tools.search is simulated from a question's answers, which those of environments.{name} lack; set its "
                "tools, or another engine"
            )
    for name, place in tools.own.items():
        try:
            own_tool(name, place)
        except ToolError as error:
            raise ConfigError(f"rollout.tools.own: {error}") from error


def _check_judge(config: RunConfig, rules: set[str]) -> None:
    if JUDGE in rules and config.reward.judge is None:
        raise ConfigError(
            "questions have the rule judge, but no model that grades their answers is named; set reward.judge.base_url and "
            "reward.judge.name, or another rule"
        )
    if JUDGE not in rules and config.reward.judge is not None:
        raise ConfigError("reward.judge has no effect, for no question has the rule judge; leave it out, or set this rule")


def _check_training(config: RunConfig, questions: int) -> None:
    prompts, group = config.rollout.prompts, config.rollout.group_size
    if not any(config.weights.values()):
        raise ConfigError("every environment has weight 0, so there is nothing to train on; give one a weight")
    if prompts > questions:
        raise ConfigError(f"rollout.prompts is {prompts} but there are only {questions} training questions; lower it or add data")
    estimator = config.advantage.estimator
    if group == 1 and estimator in GROUP_RELATIVE:
        raise ConfigError(f"advantage.estimator {estimator} compares a group's trajectories: set rollout.group_size to 2 or more")
    if group == 1 and config.select.drop_rate > 0:
        raise ConfigError("a group of one is always all right or all wrong: set rollout.group_size to 2 or select.drop_rate to 0")
    if config.sampling != Sampling():
        raise ConfigError(
            "the update assumes sampling.temperature 1 and sampling.top_p 1: the log-probs would not be the policy's"
        )
    _check_learning(config)


def _check_learning(config: RunConfig) -> None:
    update, estimator = config.update, config.advantage.estimator
    if config.advantage.with_critic and update.critic is None:
        raise ConfigError(f"advantage.estimator {estimator} needs values: set update.critic, for example update.critic.lr=1e-5")
    if update.critic is not None and not config.advantage.with_critic:
        raise ConfigError(
            f"advantage.estimator {estimator} has no use for update.critic; leave it out, or use {' or '.join(WITH_CRITIC)}"
        )
    if isinstance(update.loss, RatioLoss) and update.steps_per_batch == 1 and update.loss.old == "trainer":
        raise ConfigError(
            f"update.loss {update.loss.kind} has nothing to clip: with one optimiser step per batch the ratio is 1; raise "
            "update.minibatches or update.epochs, set update.loss.old to engine, or use policy_gradient"
        )
    trajectories = config.rollout.prompts * config.rollout.group_size
    if update.minibatches > trajectories:
        raise ConfigError(
            f"update.minibatches is {update.minibatches} but a batch has only {trajectories} trajectories; lower it or raise "
            "rollout.prompts"
        )
