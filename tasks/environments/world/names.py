"""Invented names. A name's syllables decide its split, so training and held-out worlds never share one, whatever their seeds."""

from typing import Literal

Split = Literal["train", "held_out"]

_CONSONANTS = "bdfgklmnrstv"
HEADS = [consonant.upper() + vowel for consonant in _CONSONANTS for vowel in "aeo"]
ENDS = [consonant + ending for consonant in _CONSONANTS for ending in ("il", "un", "ur")]
_HELD_OUT_EVERY = 4


def split_of(name: str) -> Split:
    """The split a name belongs to. Raises ValueError for a name that is not made of these syllables."""
    return "held_out" if (HEADS.index(name[:2]) + ENDS.index(name[2:])) % _HELD_OUT_EVERY == 0 else "train"


def all_names(split: Split) -> list[str]:
    """Every name of a split, in a fixed order."""
    names = (head + end for head in HEADS for end in ENDS)
    return [name for name in names if split_of(name) == split]
