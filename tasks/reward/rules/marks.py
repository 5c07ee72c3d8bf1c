"""Removes what surrounds the value of an answer: emphasis, boxes and marks of Markdown and LaTeX, and the words of a sentence
that says it.

Those words change nothing of its value, and deny nothing. Any other word may ("twice", "cannot", "wrong"), so a sentence with
one is no answer but its own whole text.
"""

import re

INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
MOST = 8  # marks around one another
_AROUND = re.compile(
    r"\\(?:boxed|fbox)\s*\{(?P<box>.*)\}|\\\((?P<inline>.*)\\\)|\\\[(?P<display>.*)\\\]|\$\$(?P<double>.*)\$\$"
    r"|(?<!\\)\$(?=.*[^\\]\$$)(?P<single>.*)\$|(?P<emphasis>\*\*|__|[*_`])(?P<stressed>.*)(?P=emphasis)",
    re.DOTALL,
)
_STRESSED = re.compile(r"(\*\*|__|[*_`])(.*)\1\.?", re.DOTALL)
_HEADING = re.compile(r"^\s*#+\s+")
_PLAIN = (
    (re.compile(r"(?<!\\)\$\s*([+-]?\d[\d.,]*)\s*(?<!\\)\$"), r" \1 "),
    (re.compile(r"\\mathrm\s*\{([A-Za-z])\}"), r"\1"),
    (re.compile(r"\\(?:text|mathrm|mbox|textrm)\s*\{([^{}\\]*)\}"), r" \1"),
    (re.compile(r"\\([%$])"), r"\1"),
    (re.compile(r"\\!|(?<=,)\}|\{(?=,\})|\\(?=,\d)"), ""),
    (re.compile(r"\^\s*(?:\\circ\b|\{\s*\\circ\s*\})"), "°"),
    (re.compile(r"\\[, ]"), " "),
)
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
_STRESSED_WORDS = re.compile(r"(?<![\w)])(\*\*|__)(?=[A-Za-z])([^*_\n]{1,80}?)\1")
LONGEST = 2000  # characters of a sentence


def unmarked(text: str) -> str:
    """Return the text without what is around all of it, but for the full stop behind a number."""
    text = _HEADING.sub("", text)
    for _ in range(MOST):
        if not (match := _AROUND.fullmatch(text.strip().removesuffix(".").strip())):
            break
        text = next(
            match[name] for name in ("box", "inline", "display", "double", "single", "stressed") if match[name] is not None
        )
    return text.strip()


def unstressed(text: str) -> str:
    """Return the text without emphasis around all of it."""
    text = _HEADING.sub("", text)
    for _ in range(MOST):
        if not (match := _STRESSED.fullmatch(text.strip())):
            break
        text = match[2]
    return text.strip()


def plain(text: str) -> str:
    """Return LaTeX of a number and its unit as plain text."""
    for mark, simple in _PLAIN:
        text = mark.sub(simple, text)
    return text.strip()


def carries(words: str) -> bool:
    """Return whether the words around an answer leave it as it is: words that carry a statement, single letters, and signs."""
    if _OF_ANSWER.search(words) or re.search(r"[\d\\√!%^+*/<>≤≥≠~≈]|[−-]\s*$", words):
        return False
    return all(len(word) == 1 or word.lower().replace("’", "'") in _CARRIERS for word in _WORD.findall(words))


def said(text: str) -> str:
    """Return the answer that a sentence states; the whole text if it is no such sentence."""
    text = _STRESSED_WORDS.sub(r"\2", text.strip())
    match = _SENTENCE.fullmatch(text) if len(text) <= LONGEST else None
    return match["said"] if match and carries(match["before"]) else text
