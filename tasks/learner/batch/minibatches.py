"""Which trajectories each optimiser step of a batch learns from."""

from collections.abc import Sequence

import numpy as np

from nbrl.tasks.learner.batch.targets import Targets


def minibatches(groups: Sequence[str], targets: Targets, epochs: int, count: int, seed: int) -> list[list[int]]:
    """`count` shares of the examples for each epoch, like in number, every example with a sampled token once an epoch.

    The groups are shuffled anew each epoch, whole, so that neighbours still share their prompt. One share keeps the order as it
    is. With fewer examples than shares there are as many shares as examples.
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
