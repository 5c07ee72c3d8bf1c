"""The tokens of a sampled action with their log-probabilities, as text where the tokenizer is at hand."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from nbrl.agent.tokens.tokenizer import UNKNOWN
from nbrl.agent.trajectory import Node

Decode = Callable[[int], str]


@dataclass(frozen=True)
class Token:
    """`logprob` is in nats, as the engine gave it; `shade` is how improbable the token was, from 0 to 1."""

    text: str
    id: int
    logprob: float

    @property
    def shade(self) -> float:
        return round(1.0 - math.exp(min(0.0, self.logprob)), 2)


def decoder(folder: str) -> Decode:
    """Text of a single token, by the tokenizer of a model folder; its number where there is no tokenizer."""
    path = Path(folder, "tokenizer.json")
    if not path.is_file():
        return str
    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


def tokens(node: Node, decode: Decode) -> list[Token]:
    """The tokens of a sampled node; none if its ids are unknown, as those of a chat server."""
    if all(token == UNKNOWN for token in node.token_ids):
        return []
    return [Token(decode(token), token, logprob) for token, logprob in zip(node.token_ids, node.logprobs, strict=True)]
