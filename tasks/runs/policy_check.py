"""Checks that a model's folder suits the agent that samples from it, and the learner that trains it."""

from nbrl.agent.context.context import check_room
from nbrl.agent.errors import ContextError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.gpu import gpus
from nbrl.infra.ray_cluster import RaySettings
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.learner.process.devices import on_cuda
from nbrl.tasks.learner.settings import StepSettings, UpdateSettings
from nbrl.tasks.model_folder.check import check_model, check_targets
from nbrl.tasks.model_folder.source import PolicySettings, local_config


def check_reads(policy: PolicySettings, agent: AgentSettings) -> bool:
    """Whether the model is in a folder, which then suits the agent's limits; one of the hub is not looked at.

    Raises ConfigError if it does not suit them, or there is no such model.
    """
    model, limit = local_config(policy), agent.context_tokens
    if model is None:
        return False
    if limit > model.get("max_position_embeddings", limit):
        raise ConfigError(
            f"agent.context_tokens is {limit} but the policy reads at most {model['max_position_embeddings']} tokens; lower it"
        )
    tokenizer = ChatTokenizer.load(policy.path, agent)
    if tokenizer.vocab_size > model["vocab_size"]:
        raise ConfigError(
            f"policy.path {policy.path}: the tokenizer has more tokens than the model's vocab_size; they do not match"
        )
    try:
        check_room(tokenizer, agent, tools="")  # what is said of the tools is known when they are open
    except ContextError as error:
        raise ConfigError(str(error)) from error
    return True


def check_learns(path: str, update: StepSettings) -> None:
    """Raises ConfigError if the learner cannot train the model of this folder."""
    try:
        check_model(path)
        check_targets(path, update.lora.target_modules if update.lora else ())
    except UpdateError as error:
        raise ConfigError(f"policy.path: {error}") from error


def check_devices(update: UpdateSettings, ray: RaySettings) -> None:
    """Raises ConfigError if the learner's devices are not there; those of a cluster are known when it is joined."""
    if ray.address is not None:
        return
    try:
        on_cuda(update, gpus() if ray.num_gpus is None else ray.num_gpus)
    except UpdateError as error:
        raise ConfigError(str(error)) from error
