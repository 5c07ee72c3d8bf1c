"""Chooses the sampled actions on which a publish is proved."""

import numpy as np

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.seeds import derive_seed

PROOF_TOKENS = 2048  # unique tokens to forward, prompts included
PROOF_TARGETS = 512  # sampled tokens to judge


def proof_actions(forest: Forest, seed: int) -> list[int]:
    """Numbers of some actions, all of one trajectory after another in an order that `seed` decides.

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
            new = set(_path(forest, number)) - nodes
            size = sum(len(forest.ids[node]) for node in new)
            if targets >= PROOF_TARGETS or (chosen and tokens + size > PROOF_TOKENS):
                continue
            chosen.append(number)
            nodes |= new
            tokens, targets = tokens + size, targets + len(forest.actions[number].logprobs_T)
    return sorted(chosen)


def path_of(forest: Forest, number: int) -> list[int]:
    """The ids from the root to the end of an action, which are its last."""
    return [token for node in reversed(_path(forest, number)) for token in forest.ids[node].tolist()]


def _path(forest: Forest, number: int) -> list[int]:
    """The nodes from an action up to the root."""
    nodes, node = [], forest.actions[number].place
    while node != ROOT:
        nodes.append(node)
        node = forest.parent[node]
    return nodes
