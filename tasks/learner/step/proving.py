"""The proof of an update: log-probs for the publish that follows, and those of the sampled tokens before the first step."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch.distributed as dist
from torch import Tensor

from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import table_of
from nbrl.tasks.learner.batch.tree import Forest, chain
from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.learner.proof import Mismatch, ProofSequence
from nbrl.tasks.learner.step.batch_constants import BatchConstants
from nbrl.tasks.learner.step.passes import Passes
from nbrl.tasks.seeds import derive_seed

PROOF_TOKENS = 2048  # unique tokens to forward, prompts included
PROOF_TARGETS = 512  # sampled tokens to judge


def proof_actions(forest: Forest, seed: int) -> list[int]:
    """Return the numbers of some actions, all of one trajectory after another in an order that `seed` decides.

    Those that fit into PROOF_TOKENS, until they have PROOF_TARGETS; the first one always, so that there is something to judge.
    """
    by_example: dict[int, list[int]] = {}
    for number, action in enumerate(forest.actions):
        by_example.setdefault(action.example, []).append(number)
    examples = list(by_example)
    chosen: list[int] = []
    nodes: set[int] = set()
    tokens = targets = 0
    for place in np.random.default_rng(derive_seed(seed, "proof")).permutation(len(examples)):
        for number in by_example[examples[place]]:
            new = set(forest.path(number)) - nodes
            size = sum(len(forest.ids[node]) for node in new)
            if targets >= PROOF_TARGETS or (chosen and tokens + size > PROOF_TOKENS):
                continue
            chosen.append(number)
            nodes |= new
            tokens, targets = tokens + size, targets + len(forest.actions[number].logprobs_T)
    return sorted(chosen)


def proof_sequences(order: UpdateOrder, forest: Forest, passes: Passes) -> list[ProofSequence]:
    """Collective. Score the order's sequence or, if it has none, sampled actions of the batch, under the policy as it is now."""
    if order.proof_token_ids:
        ids = order.proof_token_ids
        return [ProofSequence(token_ids=ids, first=1, logprobs=passes.logprobs(chain(ids)))]
    chosen = proof_actions(forest, order.seed)
    sequences = []
    for number, logprobs in zip(chosen, passes.action_logprobs(forest, chosen), strict=True):
        ids = forest.path_ids(number)
        sequences.append(ProofSequence(token_ids=ids, first=len(ids) - len(logprobs), logprobs=logprobs))
    return sequences


def own_mismatch(order: UpdateOrder, forest: Forest, passes: Passes) -> Mismatch:
    """Collective. Return the mismatch of the engine's log-probs and the trainer's where that chooses its experts itself, of some
    actions. New weights are proved so, for which no routes are known.
    """
    chosen = proof_actions(forest, order.seed)
    own = passes.action_logprobs(forest, chosen)
    engine = [forest.actions[number].logprobs_T for number in chosen]
    return Mismatch.of((np.concatenate(engine) - np.concatenate(own)).tolist())


def mismatch_before(forest: Forest, before_N: Floats) -> Mismatch | None:
    """Return the mismatch of the engine's log-probs and the trainer's before the first step, NaN where unknown."""
    known_N = ~np.isnan(before_N)
    return Mismatch.of((forest.engine_logprob_N - before_N)[known_N].tolist()) if known_N.any() else None


def gather_token_logprobs(constants: BatchConstants, targets: Targets, examples: list[int], first_N: Tensor) -> Floats:
    """Collective. Return the log-probs [N] under the policy before the first optimiser step, NaN where it forwarded nothing
    before that.

    `first_N` has what this rank forwarded in the first step, which is of `examples`, and 0 elsewhere.
    """
    if constants.old_N is not None:
        before_N: Floats = constants.old_N.cpu().numpy()
        return before_N
    dist.all_reduce(first_N)
    return np.where(np.isin(targets.example_N, examples), first_N.cpu().numpy(), np.nan)


def write_token_logprobs(folder: Path, batch: Batch, logp_N: Floats) -> None:
    """Write one row for each action whose tokens have log-probs, in the order of the batch. Raises UpdateError if it cannot."""
    table = table_of(batch.trajectories, Targets.of(batch.forest), logp_N)
    pq.write_table(table, folder / TOKEN_LOGPROBS)
