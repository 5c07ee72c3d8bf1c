"""Invented names. A name's syllables decide its split, so training and held-out worlds never share one, whatever their seeds."""

import random
from typing import Literal

Split = Literal["train", "held_out"]

_CONSONANTS = "bdfgklmnrstv"
HEADS = [consonant.upper() + vowel for consonant in _CONSONANTS for vowel in "aeo"]
MIDDLES = [consonant + vowel for consonant in _CONSONANTS for vowel in "aeo"]
ENDS = [consonant + ending for consonant in _CONSONANTS for ending in ("il", "un", "ur")]
_HELD_OUT_EVERY = 5


def split_of(name: str) -> Split:
    """The split a name belongs to. Raises ValueError for a name that is not made of these syllables."""
    parts = HEADS.index(name[:2]) + MIDDLES.index(name[2:4]) + ENDS.index(name[4:])
    return "held_out" if parts % _HELD_OUT_EVERY == 0 else "train"


def all_names(split: Split) -> list[str]:
    """Every name of a split, in a fixed order."""
    names = (head + middle + end for head in HEADS for middle in MIDDLES for end in ENDS)
    return [name for name in names if split_of(name) == split]


class Namer:
    """Hands out names of one split; no name twice."""

    def __init__(self, rng: random.Random, split: Split) -> None:
        self._names = all_names(split)
        rng.shuffle(self._names)

    def __call__(self) -> str:
        if not self._names:
            raise ValueError("the world asks for more names than there are; generate fewer questions")
        return self._names.pop()
