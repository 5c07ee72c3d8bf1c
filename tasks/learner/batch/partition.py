"""Partitions sampled actions over ranks and micro-batches."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from transformers import PreTrainedModel

from nbrl.agent.trajectory import ROOT
from nbrl.tasks.learner.batch.tree import Forest

Stretch = tuple[int, int]  # start and end (exclusive) in a row


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a forward pass: per token in the layers, per pair of query and key in the attention, and per
    target in the head. The backward pass takes twice as many of each.
    """

    token: int
    pair: int
    target: int

    def path(self, tokens: int) -> int:
        """Return the operations for the first `tokens` tokens of a root path, which attend to one another causally."""
        return self.token * tokens + self.pair * (tokens * (tokens + 1) // 2)


def cost_of(lm: PreTrainedModel) -> Cost:
    """Compute the cost from the model's shape: two per weight, and two per element of a query head in the scores and in the sums.

    Of experts, which are stacked in parameters of three dimensions, a token uses only some.
    """
    config = lm.config
    heads, experts = getattr(config, "num_attention_heads", None) or 0, getattr(config, "num_experts_per_tok", None)
    size = config.to_dict().get("head_dim") or (config.hidden_size // heads if heads else 0)
    embedding = config.vocab_size * config.hidden_size
    apart = embedding if config.tie_word_embeddings else 2 * embedding
    used = [p.numel() if p.ndim < 3 or experts is None else p.shape[1:].numel() * experts for p in lm.parameters()]
    return Cost(
        token=2 * max(1, sum(used) - apart),
        pair=4 * config.num_hidden_layers * heads * size,
        target=2 * embedding,
    )


@dataclass(frozen=True)
class Partition:
    """Numbers of actions by rank and micro-batch, with the same number of micro-batches for every rank.

    `imbalance` is the costliest rank's cost over the mean of all ranks.
    """

    actions_by_rank: list[list[list[int]]]
    imbalance: float


def partition(forest: Forest, actions: Sequence[int], ranks: int, budget: int, cost: Cost, apart: bool = False) -> Partition:
    """Put every action with its complete root path into one micro-batch; so a cut repeats what the paths on its two sides share.

    The actions form a row in depth-first order, where neighbours share most. The row is split into one stretch per rank so
    that the costliest is as cheap as possible. Each stretch is split into micro-batches of at most `budget` tokens, by the
    fewest of those cuts that repeat least; an action whose path alone is longer has a micro-batch of its own. Actions at one
    place stay together. Where paths are forwarded `apart`, they share nothing. A rank with fewer micro-batches gets empty ones at
    the end; every rank begins with its costliest.
    """
    row = _Row(forest, actions, cost, apart)
    stretches = [sorted(row.micro_batches(stretch, budget), key=row.cost, reverse=True) for stretch in row.shares(ranks)]
    most = max(len(each) for each in stretches)
    actions_by_rank = [[row.actions(each) for each in mine] + [[] for _ in range(most - len(mine))] for mine in stretches]
    costs = [sum(row.cost(each) for each in mine) for mine in stretches]
    return Partition(actions_by_rank, max(costs) * ranks / max(1, sum(costs)))


class _Row:
    """The places that hold actions, in depth-first order. A stretch of the row needs the union of its places' root paths."""

    def __init__(self, forest: Forest, actions: Sequence[int], cost: Cost, apart: bool) -> None:
        self._held: dict[int, list[int]] = {}
        for action in actions:
            self._held.setdefault(forest.actions[action].place, []).append(action)
        order, span = forest.depth_first(actions)
        self._places = [node for node in order if node in self._held]
        before, shared = ROOT, []
        for place in self._places:
            node = place
            while node != ROOT and not (before != ROOT and span[node][0] <= span[before][0] < span[node][1]):
                node = forest.parent[node]
            shared.append(0 if node == ROOT or apart else forest.depth[node])
            before = place
        self._shared = shared  # tokens of the root path that a place has in common with the place before it
        self._again = [cost.path(tokens) for tokens in shared]
        depths = [forest.depth[place] for place in self._places]
        targets = [cost.target * sum(len(forest.actions[each].logprobs_T) for each in self._held[p]) for p in self._places]
        new = [depth - tokens for depth, tokens in zip(depths, shared, strict=True)]
        costs = [cost.path(d) - again + t for d, again, t in zip(depths, self._again, targets, strict=True)]
        self._tokens, self._costs = ([0, *accumulate(each)] for each in (new, costs))  # of the row up to each place

    def actions(self, stretch: Stretch) -> list[int]:
        return sorted(action for place in self._places[slice(*stretch)] for action in self._held[place])

    def cost(self, stretch: Stretch) -> int:
        first, last = stretch
        return self._costs[last] - self._costs[first] + (self._again[first] if first < last else 0)

    def shares(self, ranks: int) -> list[Stretch]:
        """Return one stretch per rank, with the smallest possible largest cost; stretches at the end may be empty."""
        least, enough = 0, self._costs[-1]
        while least < enough:
            middle = (least + enough) // 2
            least, enough = (least, middle) if len(self._filled(middle)) <= ranks else (middle + 1, enough)
        filled, size = self._filled(enough), len(self._places)
        return filled + [(size, size)] * (ranks - len(filled))

    def _filled(self, most: int) -> list[Stretch]:
        """Return stretches that each cost up to `most`, except single places that cost more."""
        filled, first = [], 0
        while first < len(self._places):
            last = bisect_right(self._costs, most + self._costs[first] - self._again[first]) - 1
            filled.append((first, max(first + 1, last)))
            first = filled[-1][1]
        return filled

    def micro_batches(self, stretch: Stretch, budget: int) -> list[Stretch]:
        """Return the micro-batches by dynamic programming over places: the best way to end one before each."""
        begin, end = stretch
        best = [(0, 0)]  # repeated cost and number of micro-batches up to each place
        back: list[int] = []
        starts: deque[tuple[tuple[int, int], int]] = deque()  # starts within the budget, each better than the ones before it
        for last in range(begin + 1, end + 1):
            first = last - 1
            repeated, count = best[-1]
            way = (repeated + (self._again[first] if first > begin else 0), count + 1)
            while starts and starts[-1][0] >= way:
                starts.pop()
            starts.append((way, first))
            while len(starts) > 1 and self._size(starts[0][1], last) > budget:
                starts.popleft()
            best.append(starts[0][0])
            back.append(starts[0][1])
        batches = []
        while end > begin:
            batches.append((back[end - begin - 1], end))
            end = batches[-1][0]
        return batches[::-1]

    def _size(self, first: int, last: int) -> int:
        return self._tokens[last] - self._tokens[first] + self._shared[first]
