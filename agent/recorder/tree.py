"""The tree of a trajectory whose prompts another program wrote: each token below the same tokens is in it once.

It is a radix tree of token ids, in which a sampled answer is a path. Retries, edited histories, compacted contexts and parallel
sub-agents are branches of it.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nbrl.agent.policy import Generation
from nbrl.agent.trajectory import ROOT, Node


@dataclass(eq=False)
class TokenRun:
    """A run of ids below `parent`. Where a later path leaves it halfway, its first part becomes a run of its own above it."""

    parent: "TokenRun | None"
    ids: "array[int]"
    children: "dict[int, TokenRun]" = field(default_factory=dict)  # by their first id


@dataclass(frozen=True)
class SampledPath:
    """The ids that the engine returned to a request: the path from the end of `start` to the end of `end`."""

    step: int
    start: TokenRun
    end: TokenRun
    generation: Generation


class RequestTree:
    """All prompts of a trajectory and what was sampled after them."""

    def __init__(self) -> None:
        self._root = TokenRun(None, array("i"))
        self._sampled: list[SampledPath] = []

    def ids(self, run: TokenRun) -> list[int]:
        """Return the ids from the root to the end of a run."""
        parts = list[Sequence[int]]()
        above: TokenRun | None = run
        while above is not None:
            parts.append(above.ids)
            above = above.parent
        return [number for part in reversed(parts) for number in part]

    def add(self, ids: Sequence[int]) -> tuple[TokenRun, int]:
        """Add a path from the root; return the run that ends with it, and how many of its ids are new."""
        return self._below(self._root, array("i", ids))

    def sampled(self, start: TokenRun, generation: Generation) -> SampledPath:
        """Add what the engine returned to the prompt that ends with `start`."""
        end, _ = self._below(start, array("i", generation.token_ids))
        self._sampled.append(SampledPath(len(self._sampled), start, end, generation))
        return self._sampled[-1]

    def _below(self, run: TokenRun, ids: "array[int]") -> tuple[TokenRun, int]:
        place = 0
        while place < len(ids):
            child = run.children.get(ids[place])
            if child is None:
                new = TokenRun(run, ids[place:])
                run.children[ids[place]] = new
                return new, len(ids) - place
            same = _alike(child.ids, ids, place)
            run = child if same == len(child.ids) else _cut(child, same)
            place += same
        return run, 0

    def nodes(self) -> list[Node]:
        """Return the tree as a trajectory has it: a run that several answers share is there once for each of them."""
        covering: dict[
            TokenRun, list[tuple[SampledPath, int]]
        ] = {}  # answers that hold a run, each with where the run begins in it
        for path in self._sampled:
            for run, begin in _runs(path):
                covering.setdefault(run, []).append((path, begin))
        nodes: list[Node] = []
        place: dict[TokenRun, int] = {self._root: ROOT}
        last: dict[int, int] = {}  # the last node of an answer, by its step
        for run in self._downward():
            above = ROOT if run.parent is None else place[run.parent]
            for path, begin in covering.get(run, ()):
                place.setdefault(run, len(nodes))
                logprobs = path.generation.logprobs[begin : begin + len(run.ids)]
                nodes.append(
                    Node(
                        parent=last.get(path.step, above),
                        kind="sampled",
                        step=path.step,
                        token_ids=list(run.ids),
                        logprobs=logprobs,
                        weights_version=path.generation.weights_version,
                    )
                )
                last[path.step] = len(nodes) - 1
            if run not in place:
                place[run] = len(nodes)
                nodes.append(Node(parent=above, kind="task" if above == ROOT else "observation", step=0, token_ids=list(run.ids)))
        return nodes

    def _downward(self) -> Iterator[TokenRun]:
        """Yield all runs but the empty root, parents before their children."""
        waiting = list(self._root.children.values())
        while waiting:
            run = waiting.pop()
            yield run
            waiting += run.children.values()


def _alike(ours: "array[int]", theirs: "array[int]", place: int) -> int:
    """Return how many ids two arrays have in common, the second from `place` on."""
    most = min(len(ours), len(theirs) - place)
    if ours[:most] == theirs[place : place + most]:
        return most
    return next(number for number in range(most) if ours[number] != theirs[place + number])


def _cut(run: TokenRun, length: int) -> TokenRun:
    """Cut a run behind its first ids; return these as a new run above it. What ended with the run still does."""
    first = TokenRun(run.parent, run.ids[:length], {run.ids[length]: run})
    if run.parent is not None:
        run.parent.children[first.ids[0]] = first
    run.parent, run.ids = first, run.ids[length:]
    return first


def _runs(path: SampledPath) -> list[tuple[TokenRun, int]]:
    """Return the runs of an answer from its first to its last, each with where it begins in the answer."""
    runs, run = list[TokenRun](), path.end
    while run is not path.start and run.parent is not None:
        runs.append(run)
        run = run.parent
    begin, found = 0, list[tuple[TokenRun, int]]()
    for each in reversed(runs):
        found.append((each, begin))
        begin += len(each.ids)
    return found
