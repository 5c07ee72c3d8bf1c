"""The tokens of a sampled action with their log-probabilities, as text where there is a tokenizer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from nbrl.agent.errors import TokenizerError
from nbrl.agent.tokens.rendering import guarded
from nbrl.agent.tokens.tokenizer import UNKNOWN
from nbrl.agent.trajectory import ROOT, Node, Trajectory

DIFFERS = 0.1  # nats
Decode = Callable[[int], str]


@dataclass(frozen=True)
class Token:
    """`logprob` is in nats, as the engine gave it; `learner` is the learner's before its first optimiser step, None if unknown.

    `shade` is how improbable the token was, from 0 to 1. `difference` is the learner's log-prob minus the engine's.
    """

    text: str
    id: int
    logprob: float
    learner: float | None = None

    @property
    def shade(self) -> float:
        return round(1.0 - math.exp(min(0.0, self.logprob)), 2)

    @property
    def difference(self) -> float | None:
        return None if self.learner is None else self.learner - self.logprob

    @property
    def differs(self) -> bool:
        """Return whether the difference is more than arithmetic of another precision makes."""
        return self.difference is not None and abs(self.difference) > DIFFERS

    @property
    def words(self) -> str:
        """Return the tooltip of the token."""
        engine = f"{self.id}: {self.logprob:.4f} nats"
        return engine if self.difference is None else f"{engine}, learner {self.learner:.4f} ({self.difference:+.4f})"


@dataclass(frozen=True)
class ActionTokens:
    """The tokens of one sampled action."""

    tokens: list[Token]

    @property
    def logprob(self) -> float:
        """Return the log-prob of the whole action, as the engine gave it."""
        return sum(token.logprob for token in self.tokens)

    @property
    def learner(self) -> float | None:
        """Return the log-prob of the whole action, as the learner computed it."""
        known = [token.learner for token in self.tokens if token.learner is not None]
        return sum(known) if known else None

    @property
    def worst(self) -> Token | None:
        """Return the token on which engine and learner differ most."""
        known = [token for token in self.tokens if token.difference is not None]
        return max(known, key=lambda token: abs(token.difference or 0.0), default=None)


def decoder(folder: str) -> Decode:
    """Return a function that gives the text of a token by a folder's tokenizer; its number without one that works."""
    path = Path(folder, "tokenizer.json")
    try:
        with guarded(path):
            if not path.is_file():
                return str
            tokenizer = Tokenizer.from_file(str(path))
    except TokenizerError:
        return str

    def decode(token: int) -> str:
        try:
            with guarded(path):
                return str(tokenizer.decode([token], skip_special_tokens=False)) if token >= 0 else str(token)
        except TokenizerError:
            return str(token)

    return decode


def action(node: Node, decode: Decode, learner: Sequence[float] = ()) -> ActionTokens:
    """Return the tokens of a sampled node; none if its ids or log-probs are unknown, as those of a chat server.

    `learner` are the learner's log-probs of its tokens, or empty if it did not compute them.
    """
    if not node.logprobs or all(token == UNKNOWN for token in node.token_ids):
        return ActionTokens([])
    other = learner if len(learner) == len(node.token_ids) else [None] * len(node.token_ids)
    rows = zip(node.token_ids, node.logprobs, other, strict=True)
    return ActionTokens([Token(decode(token), token, engine, trainer) for token, engine, trainer in rows])


@dataclass(frozen=True)
class Branch:
    """A node of the tree: `depth` counts the forks above it, `children` its direct successors."""

    number: int
    kind: str
    step: int
    tokens: int
    depth: int
    children: int


def branches(trajectory: Trajectory) -> list[Branch]:
    """Return all nodes, each after its parent; a node after a fork is one deeper than the node before it."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(trajectory.nodes):
        children.setdefault(node.parent, []).append(number)
    branches: list[Branch] = []
    left = [(number, 0) for number in reversed(children.get(ROOT, []))]
    while left:
        number, depth = left.pop()
        node, below = trajectory.nodes[number], children.get(number, [])
        branches.append(Branch(number, node.kind, node.step, len(node.token_ids), depth, len(below)))
        left += [(child, depth + (len(below) > 1)) for child in reversed(below)]
    return branches
