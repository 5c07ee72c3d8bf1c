"""The words that may stand around an answer in a sentence that says it: they change nothing of its value, and deny nothing.

Any other word may ("twice", "cannot", "wrong", "greater than"), so a sentence with one is no answer but its own whole text.
"""

import re

_CARRYING = (
    "a an the this that these those it its it's we you they i he she there here our my his her their so therefore thus "
    "hence then finally and of for in on at to from by with as per all each both one's let's ok okay well yes is are was "
    "were be being been equals equal equalling gives give gave yields yield get gets got obtain obtained have has had find "
    "found conclude know see becomes become comes come makes make means leaves answer answers result results solution "
    "solutions value values final correct right exact simplified required desired expression equation formula total overall "
    "combined sum product difference quotient ratio fraction number numbers count amount quantity probability chance area "
    "perimeter circumference volume surface length width height depth radius diameter angle side sides distance speed "
    "velocity rate time cost price profit revenue money age mass weight temperature mean median mode average maximum "
    "minimum largest smallest greatest remainder term terms digit digits coefficient slope intercept limit derivative "
    "integral variable unknown triangle rectangle square circle polygon cube sphere line point points function polynomial "
    "sequence series set matrix vector determinant trace rank degree year years day days hour hours minute minutes week "
    "weeks month months people students children boys girls apples oranges books cards coins balls ways"
)
_CARRIERS = frozenset(_CARRYING.split())
_WORD = re.compile(r"[^\W\d_](?:[^\W_]|['’](?=\w))*")
_OF_ANSWER = re.compile(r"\bof\s+(?:\w+\s+){0,3}(?:answer|result|solution|value)s?\b|\bsquares?\s+of\b", re.IGNORECASE)
# A sentence that ends with what it says the answer is.
_SENTENCE = re.compile(
    r"(?P<before>.*\b(?:is|are|was|be|equals?|equal\s+to|answer|result|solution|value|so|therefore|thus|hence|gives?|get|yields?)"
    r"(?:\s+to)?)(?:\s*[:=,]\s*|\s+)(?P<said>.*\S)",
    re.IGNORECASE | re.DOTALL,
)
_STRESSED = re.compile(r"(?<![\w)])(\*\*|__)(?=[A-Za-z])([^*_\n]{1,80}?)\1")
LONGEST = 2000  # characters of a sentence


def carries(words: str) -> bool:
    """Whether what stands around an answer leaves it as it is: words that carry a statement, single letters, and signs."""
    if _OF_ANSWER.search(words) or re.search(r"[\d\\√!%^+*/<>≤≥≠~≈]|[−-]\s*$", words):
        return False
    return all(len(word) == 1 or word.lower().replace("’", "'") in _CARRIERS for word in _WORD.findall(words))


def said(text: str) -> str:
    """What a sentence says that the answer is; the whole text where it is no such sentence."""
    text = _STRESSED.sub(r"\2", text.strip())
    found = _SENTENCE.fullmatch(text) if len(text) <= LONGEST else None
    return found["said"] if found and carries(found["before"]) else text
