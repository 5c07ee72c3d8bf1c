"""The attention of a packed tree as a few dense rectangles.

The tree is cut into segments: runs of tokens each of which follows the one before it on its root path. All tokens of a segment
attend to the path above the segment, and to those of the segment itself that are not after them. Segments of like size are
stacked and padded into blocks.
"""

# ruff: noqa: N803, N806, N815 - suffixes of tensor names are shapes

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tasks.update.tree import Ints

LONGEST = 128  # tokens of a segment; longer runs are cut, since half of a causal square is wasted
WASTE = 1.2  # how many times the exact area of its segments a block may be
AREA = 1 << 16  # queries * keys of a block: scores of a few heads then stay in a core's cache


@dataclass(frozen=True)
class Block:
    """B segments: Q query and K key tokens each, as indices into the tree, padded with token 0.

    Query i of segment b attends to the keys j <= above_B[b] + i: the path above it, then the segment up to itself. By this
    rule padding is never a key of a real query.
    """

    query_BQ: Ints
    key_BK: Ints
    above_B: Ints


@dataclass(frozen=True)
class Plan:
    """Blocks, and for each of the T tokens where its output is when the blocks' B * Q rows are laid end to end."""

    blocks: list[Block]
    place_T: Ints


def plan(end_T: Ints) -> Plan:
    """The blocks that make up the attention of a tree, given `end_T` of PackedTree."""
    segments = _segments(end_T)
    segments.sort(key=lambda each: (each[1] - each[0], len(each[2]), each[0]), reverse=True)
    blocks: list[Block] = []
    place_T = np.zeros(len(end_T), dtype=np.int64)
    rows = 0
    for group in _grouped(segments):
        block = _block(group)
        for b, (start, stop, _) in enumerate(group):
            place_T[start:stop] = rows + b * block.query_BQ.shape[1] + np.arange(stop - start)
        rows += block.query_BQ.size
        blocks.append(block)
    return Plan(blocks, place_T)


Segment = tuple[int, int, Ints]  # first token, one past the last, and the path above


def _segments(end_T: Ints) -> list[Segment]:
    size = len(end_T)
    index_T = np.arange(size)
    starts = [0, *(index_T[1:][end_T[:-1] <= index_T[1:]]).tolist(), size]
    segments: list[Segment] = []
    for start, stop in pairwise(starts):
        path = np.flatnonzero(end_T[:start] > start)
        pieces = -(-(stop - start) // LONGEST)
        cuts = np.linspace(start, stop, pieces + 1).astype(np.int64).tolist()
        for first, last in pairwise(cuts):
            segments.append((first, last, np.concatenate([path, np.arange(start, first)])))
    return segments


def _grouped(segments: list[Segment]) -> list[list[Segment]]:
    """Neighbours of like size; a group ends before its padded area is over AREA or WASTE times its own."""
    groups: list[list[Segment]] = []
    area = longest = widest = 0
    for segment in segments:
        queries = segment[1] - segment[0]
        keys = len(segment[2]) + queries
        padded = max(longest, queries) * max(widest, keys) * (len(groups[-1]) + 1 if groups else 1)
        if groups and padded <= min(AREA, WASTE * (area + queries * keys)):
            groups[-1].append(segment)
            area, longest, widest = area + queries * keys, max(longest, queries), max(widest, keys)
        else:
            groups.append([segment])
            area, longest, widest = queries * keys, queries, keys
    return groups


def _block(group: list[Segment]) -> Block:
    longest = max(stop - start for start, stop, _ in group)
    widest = max(len(path) + stop - start for start, stop, path in group)
    query_BQ = np.zeros((len(group), longest), dtype=np.int64)
    key_BK = np.zeros((len(group), widest), dtype=np.int64)
    for b, (start, stop, path) in enumerate(group):
        own = np.arange(start, stop)
        query_BQ[b, : stop - start] = own
        key_BK[b, : len(path) + stop - start] = np.concatenate([path, own])
    return Block(query_BQ, key_BK, np.array([len(path) for _, _, path in group], dtype=np.int64))
