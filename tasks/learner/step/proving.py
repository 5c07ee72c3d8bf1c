"""What the learner computes for the proof that follows a publish."""

import numpy as np

from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.proof_actions import path_of, proof_actions
from nbrl.tasks.learner.batch.tree import Forest, chain
from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.learner.proof import Mismatch, ProofSequence
from nbrl.tasks.learner.step.passes import Passes


def proof_sequences(order: UpdateOrder, forest: Forest, passes: Passes) -> list[ProofSequence]:
    """Collective. Score the order's sequence or, if it has none, sampled actions of the batch, under the policy as it is now."""
    if order.proof_token_ids:
        ids = order.proof_token_ids
        return [ProofSequence(token_ids=ids, first=1, logprobs=passes.logprobs(chain(ids)))]
    chosen = proof_actions(forest, order.seed)
    sequences = []
    for number, logprobs in zip(chosen, passes.action_logprobs(forest, chosen), strict=True):
        ids = path_of(forest, number)
        sequences.append(ProofSequence(token_ids=ids, first=len(ids) - len(logprobs), logprobs=logprobs))
    return sequences


def mismatch_before(forest: Forest, before_N: Floats) -> Mismatch | None:
    """Of the engine's log-probs of the sampled tokens and the trainer's before the first step, which are NaN where unknown."""
    known_N = ~np.isnan(before_N)
    return Mismatch.of((forest.engine_logprob_N - before_N)[known_N].tolist()) if known_N.any() else None
