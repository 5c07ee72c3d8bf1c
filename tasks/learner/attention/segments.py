"""The attention of a packed tree as a few dense rectangles of contiguous tokens.

In depth-first order an unbranched path is a contiguous run of tokens, and all descendants of a token form one range. So two
kinds of rectangles make up the attention, and almost no attention score is computed unnecessarily:

- a segment: the attention of a run to itself, causal; a small subtree that branches is one segment with a mask
- a prefix: the descendants that branch off a run at one token attend to all of the run up to that token, without a mask

A token is a query of one segment, and of one prefix for each time its root path leaves a run. The longest path below a token
comes first, so there are few of these.
"""

from dataclasses import dataclass

import numpy as np

from nbrl.tasks.learner.arrays import Bools, Ints

SMALL = 128  # up to this size a subtree is one masked square: a further call would cost more than the scores it saves


@dataclass(frozen=True)
class Segment:
    """Tokens from `start` to before `stop`, which attend to one another as `mask_QK`, [Q, Q], says, or causally without it."""

    start: int
    stop: int
    mask_QK: Bools | None


@dataclass(frozen=True)
class Prefix:
    """Tokens from `start` to before `stop`, each of which attends to all tokens from `first` to before `last`."""

    start: int
    stop: int
    first: int
    last: int


@dataclass(frozen=True)
class SegmentPlan:
    """Segments, of which each token is in exactly one, and prefixes."""

    segments: list[Segment]
    prefixes: list[Prefix]


def plan(end_T: Ints) -> SegmentPlan:
    """Return the rectangles that make up the attention of a tree, given `end_T` of PackedTree."""
    size = len(end_T)
    leaf = np.flatnonzero(end_T == np.arange(1, size + 1))
    plan_ = SegmentPlan([], [])
    siblings = [(0, size)]  # ranges of complete subtrees, none of which is below another
    while siblings:
        start, stop = siblings.pop()
        while start < stop:
            end = int(end_T[start])
            if end - start <= SMALL:
                while end < stop and end_T[end] - start <= SMALL:
                    end = int(end_T[end])
                plan_.segments.append(_square(end_T, start, end))
            else:
                run = int(leaf[np.searchsorted(leaf, start)]) + 1
                plan_.segments.append(Segment(start, run, None))
                below = run
                while below < end:
                    last = start + int(np.count_nonzero(end_T[start:run] > below))
                    until = int(end_T[last - 1])
                    plan_.prefixes.append(Prefix(below, until, start, last))
                    siblings.append((below, until))
                    below = until
            start = end
    return plan_


def _square(end_T: Ints, start: int, stop: int) -> Segment:
    index_Q = np.arange(start, stop)
    mask_QK = (index_Q <= index_Q[:, None]) & (index_Q[:, None] < end_T[start:stop])
    return Segment(start, stop, None if mask_QK[-1].all() else mask_QK)
