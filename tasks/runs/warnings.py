"""What a person should know of a configuration and its questions before work starts, though nothing prevents it."""

from nbrl.infra.gpu import available_mb, computes_in_bfloat16, gpus
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.data_review import review
from nbrl.tasks.runs.estimate import in_words, memory_shares
from nbrl.tasks.runs.prepared import Prepared


def warnings_of(start: Prepared) -> list[str]:
    """One sentence each: of its engines, its learning rate, its memory, and its questions as `review` has them."""
    config = start.config
    return [
        *_engines(config),
        *_passes(config),
        *_schedule(config),
        *_pipeline(config),
        *_max_rl(config),
        *_memory(config),
        *review(start),
    ]


def _engines(config: RunConfig) -> list[str]:
    if config.engine.resolved_device == "cpu" and config.engine.dtype == "bfloat16":
        return [
            "engine.dtype bfloat16 on a CPU takes less memory, but its log-probabilities are off by about 0.05 nats in the mean, "
            "which a training sees as mismatch (mismatch/logprob_mean_abs); engine.dtype auto computes in float32"
        ]
    return []


def _passes(config: RunConfig) -> list[str]:
    if config.update.dtype != "bfloat16" or gpus() or config.ray.address is not None or computes_in_bfloat16():
        return []
    return [
        "update.dtype is bfloat16, which this processor does not compute in (no avx512_bf16, no amx_bf16): an update takes "
        "several times as long as in float32; set update.dtype to auto or float32"
    ]


def _schedule(config: RunConfig) -> list[str]:
    update, steps = config.update, config.iterations * config.update.steps_per_batch
    if update.lr_schedule == "constant" or update.lr_floor or update.lr_decay_steps is None or update.lr_decay_steps >= steps:
        return []
    return [
        f"update.lr_schedule {update.lr_schedule} ends at optimiser step {update.lr_decay_steps} of {steps}: from there the "
        "learning rate is 0 and nothing is learnt; raise update.lr_decay_steps, lower iterations, or set update.lr_floor"
    ]


def _pipeline(config: RunConfig) -> list[str]:
    if config.pipeline.lag and config.pipeline.uncorrected:
        return [
            "pipeline.uncorrected is true: nothing corrects for the age of the weights that sample, which is for the control of "
            "an experiment; set update.tis instead"
        ]
    return []


def _max_rl(config: RunConfig) -> list[str]:
    reward = config.reward
    if config.advantage.estimator != "max_rl" or not (reward.format or reward.execution or reward.length):
        return []
    return [
        "advantage.estimator max_rl divides by the mean reward of a group, which is its share of right answers only if "
        "nothing else earns; set reward.format, reward.execution and reward.length to 0"
    ]


def _memory(config: RunConfig) -> list[str]:
    needed, free = sum(memory_shares(config).values()), available_mb() << 20
    if needed <= free:
        return []
    return [
        f"the training takes about {in_words(needed)} of memory, and {in_words(free)} are free; end other programs, or lower "
        f"engine.count, update.workers, update.tokens_per_micro_batch{', pipeline.lag' if config.pipeline.lag else ''} or "
        "sandbox.max_live"
    ]
