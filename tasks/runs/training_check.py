"""Checks that the settings of a training fit together: of its rollouts, its selection, its pipeline and its updates."""

from nbrl.agent.policy import Sampling
from nbrl.agent.tools.settings import SimulatedSearch
from nbrl.tasks.advantage.settings import GROUP_RELATIVE, OVER_BRANCHES, WITH_CRITIC, AdvantageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.settings import RatioLoss
from nbrl.tasks.runs.config import RunConfig


def check_training(config: RunConfig) -> None:
    """Raises ConfigError unless the settings of rollouts, selection, pipeline and update of a training fit together."""
    group = config.rollout.group_size
    estimator = config.advantage.estimator
    if group == 1 and estimator in GROUP_RELATIVE:
        raise ConfigError(f"advantage.estimator {estimator} compares a group's trajectories: set rollout.group_size to 2 or more")
    if group == 1 and config.select.drop_rate > 0:
        raise ConfigError("a group of one is always all right or all wrong: set rollout.group_size to 2 or select.drop_rate to 0")
    if config.sampling != Sampling():
        raise ConfigError(
            "the update assumes sampling.temperature 1 and sampling.top_p 1: the log-probs would not be the policy's"
        )
    resample_to = config.select.resample_to
    if resample_to is not None and resample_to >= group:
        raise ConfigError(
            f"select.resample_to is {resample_to}, but a group has only {group} trajectories; raise rollout.group_size, for "
            f"example to {2 * resample_to}, or leave it out"
        )
    _check_branches(config)
    _check_learning(config)
    _check_lag(config)
    _check_teacher(config)
    if config.select.pools is not None and config.select.retire_at is not None:
        raise ConfigError("select.retire_at and select.pools both say what is asked again; set one of them to null")
    horizon = config.rollout.horizon
    if horizon is not None and horizon.steps[-1] != config.agent.max_steps:
        raise ConfigError(
            f"rollout.horizon.steps ends with {horizon.steps[-1]}, but agent.max_steps is {config.agent.max_steps}; the last "
            "phase must have the steps of evaluations"
        )


def _check_teacher(config: RunConfig) -> None:
    """Check that what a teacher alone makes no use of is left out."""
    teacher = config.update.teacher
    if teacher is None or teacher.reward:
        return
    if config.select.drop_rate > 0:
        raise ConfigError(
            "select.drop_rate leaves out groups that are all right or all wrong, and a teacher alone (update.loss.reward 0) "
            "teaches from them as well; set select.drop_rate to 0"
        )
    if config.learner_estimates:
        raise ConfigError(
            "a teacher alone (update.loss.reward 0) takes no advantages: leave out update.critic, update.kl_in reward and "
            "advantage.per_ability, or raise update.loss.reward"
        )
    if config.advantage != AdvantageSettings():
        unused = ", ".join(f"advantage.{name}" for name in sorted(config.advantage.model_dump(exclude_defaults=True)))
        raise ConfigError(
            f"a teacher alone (update.loss.reward 0) takes no advantages, and {unused} would have no effect: leave it out, "
            "set it to its default where another recipe sets it, or raise update.loss.reward"
        )


def _check_branches(config: RunConfig) -> None:
    estimator, branched = config.advantage.estimator, config.rollout.branch is not None
    if branched and estimator not in OVER_BRANCHES:
        usable = " or ".join(OVER_BRANCHES)
        raise ConfigError(f"rollout.branch needs advantage.estimator {usable}, and not {estimator}; set one of them")
    if estimator in OVER_BRANCHES and not branched:
        raise ConfigError(f"advantage.estimator {estimator} needs branches; set rollout.branch, or take another estimator")
    if not branched:
        return
    if config.agent.kind == "program" or config.recorded is not None:
        what = "agent.kind program" if config.agent.kind == "program" else "an environment of the kind recorded"
        raise ConfigError(f"rollout.branch plays cells again, and with {what} there are none; leave it out")
    for setting, used in (
        ("select.resample_to", config.select.resample_to is not None),
        ("advantage.per_ability", config.advantage.per_ability),
        ("update.kl_in_reward", config.update.kl_in_reward),
    ):
        if used:
            raise ConfigError(f"{setting} is for whole trajectories, and rollout.branch makes parts; leave out one of both")


def _check_lag(config: RunConfig) -> None:
    lag, uncorrected, keep_last = config.pipeline.lag, config.pipeline.uncorrected, config.checkpoints.keep_last
    corrected = config.update.tis is not None or config.update.old == "engine"
    if lag and not corrected and not uncorrected:
        raise ConfigError(
            f"pipeline.lag {lag} learns from what older weights sampled, and nothing corrects for it; set update.tis.kind, for "
            "example to mask_tokens, or update.loss.old to engine"
        )
    if config.pipeline.stream:
        _check_stream(config)
    if lag > 1 and not config.publishes_adapters and not config.pipeline.stream:
        raise ConfigError(
            f"pipeline.lag is {lag}, so that {lag} batches are sampled at once, each from weights of its own, and engines have "
            "one set of complete weights; set update.lora.publish to adapter, of which they serve several, pipeline.stream to "
            "true, or pipeline.lag to 1"
        )
    if (lag > 1 or config.pipeline.stream) and (
        config.select.max_rounds > 1 or config.select.retire_at is not None or config.select.pools is not None
    ):
        rule = "select.retire_at" if config.select.pools is None else "select.pools"
        what = "select.max_rounds to 1" if config.select.max_rounds > 1 else f"{rule} to null"
        cause = "pipeline.stream is true" if config.pipeline.stream else f"pipeline.lag is {lag}"
        raise ConfigError(
            f"{cause}, so that a batch begins before it is known where the one before it ends; set {what}, or "
            f"{'pipeline.stream to false' if config.pipeline.stream else 'pipeline.lag to 1'}"
        )
    if config.update.old == "interpolated" and not lag:
        raise ConfigError(
            "update.loss.old interpolated goes by the age of the weights that sampled, and pipeline.lag is 0; set "
            "update.loss.old to trainer or engine"
        )
    if uncorrected and corrected:
        raise ConfigError("pipeline.uncorrected is true, but update.tis or update.loss.old corrects; set it to false")
    if keep_last is not None and keep_last <= lag:
        raise ConfigError(
            f"checkpoints.keep_last is {keep_last}, but after a kill a run with pipeline.lag {lag} needs {lag + 1}; raise it"
        )


def _check_stream(config: RunConfig) -> None:
    pipeline, prompts = config.pipeline, config.rollout.prompts
    if not prompts <= config.groups_in_flight <= pipeline.lag * prompts:
        raise ConfigError(
            f"pipeline.in_flight is {config.groups_in_flight}, where a batch has {prompts} groups and pipeline.lag is "
            f"{pipeline.lag}; set it from {prompts} to {pipeline.lag * prompts}, or leave it out"
        )
    if pipeline.mixed is not None and pipeline.mixed >= pipeline.lag:
        raise ConfigError(
            f"pipeline.mixed is {pipeline.mixed}, and no more than pipeline.lag {pipeline.lag} updates come in the middle of a "
            "trajectory that is learned from; set it below, or leave it out"
        )
    if pipeline.mixed and config.publishes_adapters:
        raise ConfigError(
            f"pipeline.mixed is {pipeline.mixed}, and with update.lora.publish adapter a trajectory keeps the weights that it "
            "began with; leave it out"
        )
    if pipeline.admit == "finish" and config.publishes_adapters:
        raise ConfigError(
            "pipeline.admit finish lets trajectories become older than pipeline.lag, and engines keep no adapter so old; set "
            "pipeline.admit to quota, or update.lora.publish to merged"
        )
    search = config.rollout.tools.search
    for setting, value in (
        ("rollout.branch", config.rollout.branch),
        ("rollout.horizon", config.rollout.horizon),
        ("rollout.tools.search.kind simulated", isinstance(search, SimulatedSearch) or None),
    ):
        if value is not None:
            raise ConfigError(f"{setting} goes by batches, and pipeline.stream has none while it samples; leave out one of both")
    if config.update.old == "interpolated":
        raise ConfigError(
            "update.loss.old interpolated goes by one age of a whole batch, and with pipeline.stream its actions have several; "
            "set update.loss.old to engine or trainer"
        )


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
    trajectories = config.rollout.prompts * (config.select.resample_to or config.rollout.group_size)
    if update.minibatches > trajectories:
        raise ConfigError(
            f"update.minibatches is {update.minibatches} but a batch has only {trajectories} trajectories; lower it or raise "
            "rollout.prompts"
        )
