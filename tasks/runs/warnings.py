"""Warnings about a configuration and its questions, which a user should know before work starts."""

import re
from collections.abc import Callable, Sequence
from typing import Any
from unicodedata import category

from nbrl.agent.context.notepad import ANSWER_CHARS
from nbrl.infra.gpu import available_mb, computes_in_bfloat16, gpus
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.reward import l0
from nbrl.tasks.reward.rules.qa import normalise
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.plan import in_words, memory_shares
from nbrl.tasks.runs.prepared import Prepared

SHOWN, SHOWN_CHARS = 3, 60  # examples of each finding, and characters of each
WORDS = 30  # an answer with more words is probably a text
MISSING = {"None", "nan", "NaN", "null", "NULL", "N/A", "n/a"}
# In brackets, with a text or a name in quotation marks behind the first of them or a comma.
_LISTED = re.compile(r"""(?:[a-z_]+\()?[\[({](?:\s*|.*,\s*)[rub]?['"].*[\])}](?:,\s*dtype=\w+)?\)?""", re.DOTALL)
_SOLUTION = re.compile(r"##|\\boxed\b|<answer>|\banswer\s*(is\b|:)", re.IGNORECASE)

Row = dict[str, Any]


def review(start: Prepared) -> list[str]:
    """Return warnings, one sentence each, with a count and examples; none about questions that were on storage already."""
    warnings, config = [], start.config
    for name, tables in (start.tables or {}).items():
        if isinstance(config.environments[name], FilesEnvironment):
            key = f"environments.{name}"
            train, held_out = tables.train.to_pylist(), tables.held_out.to_pylist()
            warnings += [*_shared(train, held_out), *_answers(f"{key}.train", train, config)]
            warnings += _answers(f"{key}.held_out", held_out, config)
    return warnings


def _shared(train: Sequence[Row], held_out: Sequence[Row]) -> list[str]:
    trained = {normalise(row["question"]) for row in train}
    both = [row for row in held_out if normalise(row["question"]) in trained]
    if not both:
        return []
    return [
        f"{len(both)} of {len(held_out)} held-out questions are training questions too, so their scores say nothing about new "
        f"ones; for example {_named(both, lambda row: row['question'])}"
    ]


def _answers(where: str, rows: Sequence[Row], config: RunConfig) -> list[str]:
    suspicions = dict(SUSPICIONS)
    if config.reward.compat == "l0":
        suspicions["have no character of [a-z0-9], so that reward.compat l0 takes every such answer for right"] = lambda answer: (
            not l0.normalise(answer)
        )
    rows_by_suspicion: dict[str, list[Row]] = {suspicion: [] for suspicion in suspicions}
    for row in rows:
        raised = [_first(answer, suspicions) for answer in row["answers"]]
        if raised and all(raised):  # one good reference is enough to be right
            rows_by_suspicion[raised[0]].append(row)
    return [
        f"{where}: the answers of {len(those)} of {len(rows)} questions {suspicion}; for example "
        + _named(those, lambda row: row["answers"][0])
        for suspicion, those in rows_by_suspicion.items()
        if those
    ]


def _first(answer: str, suspicions: dict[str, Callable[[str], bool]]) -> str:
    return next((suspicion for suspicion, holds in suspicions.items() if holds(answer)), "")


def _is_solution(answer: str) -> bool:
    return bool(_SOLUTION.search(answer)) or len(answer.split()) > WORDS


def _is_list(answer: str) -> bool:
    """Return whether it is a list of texts or an object, as Python, NumPy or JSON writes it; numbers may be an answer."""
    return bool(_LISTED.fullmatch(answer.strip()))


def _is_missing(answer: str) -> bool:
    return answer.strip() in MISSING or all(character.isspace() or category(character)[0] == "P" for character in answer)


SUSPICIONS: dict[str, Callable[[str], bool]] = {
    "carry a solution or are whole texts, which no policy matches exactly; keep the bare answer": _is_solution,
    "are longer than an agent's answer can be, so that no policy can match them": lambda answer: len(answer) > ANSWER_CHARS,
    "are lists or objects written as text, each of which is one answer; write a list as a list, in JSON or Parquet": _is_list,
    "look like missing values (nothing but punctuation, or None, nan, null)": _is_missing,
}


def _named(rows: Sequence[Row], text_of: Callable[[Row], str]) -> str:
    shown = [(row["id"], " ".join(text_of(row).split())) for row in rows[:SHOWN]]
    return ", ".join(f"{name} ({text[:SHOWN_CHARS]!r}{'…' if len(text) > SHOWN_CHARS else ''})" for name, text in shown)


def warnings_of(start: Prepared) -> list[str]:
    """Return warnings, one sentence each, about engines, learning rate, memory, and the questions as `review` has them."""
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
