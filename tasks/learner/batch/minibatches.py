"""Divides the trajectories of a batch into minibatches."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.learner.batch.targets import Targets


def minibatches(groups: Sequence[str], targets: Targets, epochs: int, count: int, seed: int) -> list[list[int]]:
    """Split the examples into `count` equal shares per epoch; every example with a sampled token is in one share per epoch.

    Complete groups are reshuffled each epoch, so that neighbours still share their prompt. A single share keeps the original
    order. With fewer examples than shares there are as many shares as examples.
    """
    examples = np.unique(targets.example_A).tolist()
    if count == 1:
        return [examples for _ in range(epochs)]
    draw = np.random.default_rng(seed)
    shares: list[list[int]] = []
    names = sorted(set(groups))
    for _ in range(epochs):
        rank = dict(zip(names, draw.permutation(len(names)).tolist(), strict=True))
        order = sorted(examples, key=lambda example: (rank[groups[example]], example))
        shares += [share.tolist() for share in np.array_split(np.array(order), min(count, len(order)))]
    return shares
