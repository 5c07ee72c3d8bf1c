"""One way of writing for an expression of mathematics, of the many that there are; runs in the confined program of scorer.py."""

import re
import unicodedata

from nbrl.tasks.reward.rules import number_words as known
from nbrl.tasks.reward.rules.marks import carries, unstressed
from nbrl.tasks.reward.rules.notation import FUNCTIONS, NAMES, STAND_IN

NUMBER = re.compile(r"\d+(?:\.\d+)?|\.\d+")
MARKED = re.compile(r"(?<!\\)\$+([^$]+)\$+|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
# A unit at the end, which a text in another unit lacks, if no word in it is a factor or a part of a sentence.
_UNIT = re.compile(
    r"\\(?:text|mbox|textrm|mathrm(?=\s*\{\s*[A-Za-z]{2}))\s*\{\s*([A-Za-z][A-Za-z /.]*)\}(?:\^\s*(?:\d|\{-?\d\}))?\s*$"
)
# The same in words alone, behind a number or a group.
_WORDS_OF_UNIT = re.compile(
    r"(?:(?<=[\d})])|(?<=\\pi)|(?<=\\pi )|(?<=(?<![A-Za-z\\])pi))\s*(?<!\\)\b((?:[A-Za-z]+[ ./]+)*[A-Za-z]+)"
    r"(?:\^\s*(?:\d|\{-?\d\}))?\s*$"
)
_NO_UNIT = (
    frozenset(["and", "so", "than", "least", "most", "more", "less", "about", "times", "if", "for", "where", "when"])
    | known.EXPRESSION
    | known.BINDING
)
_KNOWN = frozenset(
    [*known.UNITS, "km", "cm", "mm", "kg", "ml", "ft", "mi", "yd", "min", "unit", "units", "square", "cubic", "sq", "cu", "per"]
)
LONE = re.compile(
    r"\\(?:mathrm|mathbf|mathit|mathsf|operatorname|boldsymbol|bm)\s*\{\s*([A-Za-z])\s*\}"
)  # a letter in another type
NAMED = re.compile(rf"\\(?:mathrm|operatorname)\s*\{{\s*({'|'.join(FUNCTIONS)})\s*\}}")
SPACED = re.compile(r"(?<!\\)\\(?:[,:; ]|q?quad\b)|(?<!\\)~")
SYNONYMS = {r"\varnothing": r"\emptyset", r"\varphi": r"\phi", r"\varepsilon": r"\epsilon", r"\vartheta": r"\theta"}
SYNONYM = re.compile(rf"({'|'.join(map(re.escape, SYNONYMS))})(?![A-Za-z])")
# Names as Python writes them.
GREEK = re.compile(rf"(?<![A-Za-z\\])({'|'.join(NAMES)})(?![A-Za-z])")
GAMMA = re.compile(r"\\gamma(?![A-Za-z])")  # which math-verify takes for Euler's constant, or for a function of what follows
NUMBERED = re.compile(r"(?<![A-Za-z\\\d_{])([A-Za-z])(\d+)(?![\d.])")  # x1
STYLE = re.compile(r"\\(?:!|displaystyle\b|limits\b|left(?![A-Za-z])|right(?![A-Za-z])|[bB]igg?[lr]?(?![A-Za-z]))")
NEAR = re.compile(r"≈|\\(?:approx|simeq)(?![A-Za-z])")
FRACTION = re.compile(r"\\([dtc]?frac|binom)(?![A-Za-z])")
ARGUMENT = re.compile(r"\s*(\{|\\[A-Za-z]+|[A-Za-z\d])")
# Where a plain fraction ends before a factor, of which math-verify would make a part of what is below: 3/4x.
OVER = re.compile(
    r"(/\s*\d+(?:\.\d+)?)\s*(?=(?!(?:and|or|if|so|to|in|is|at|of|by)\b)[A-Za-z]{1,3}(?![A-Za-z])|√"
    rf"|\\?(?:{'|'.join(sorted({*FUNCTIONS, 'pi', 'theta', 'alpha', 'beta', 'frac', 'dfrac', 'binom'}))})(?![A-Za-z]))"
)
NEGATIVE = re.compile(r"\^\s*(-\s*(?:\d+|[A-Za-z]))(?![\w.])")  # 2^-1
# Where two factors meet that math-verify would add, or of which it would leave one out.
FACTOR = re.compile(r"(?<=[\d})])\s*(?=\\binom)|(?<=\))\s*(?=\()|(?<=\d)(?<!\^\d)\s*(?=\()")
DOUBLE_STRUCK = re.compile(r"\\mathbb\s+([A-Z])")
LOWER = re.compile(r"_(\d)")
THOUSANDS = re.compile(r"(?<=\d)\{,\}(?=\d)|(?<=\d),(?=\d{3}(?!\d))")
LISTED = re.compile(r"\s*,?\s*(?:\\text\s*\{\s*(?:and|or)\s*\}|(?<!\\)\b(?:and|or)\b)\s*")
SIGNS = str.maketrans({
    "∞": r"\infty ", "π": r"\pi ", "×": r"\times ", "·": r"\cdot ", "÷": r"\div ", "−": "-", "≤": r"\le ", "≥": r"\ge ",
    "≠": r"\ne ", "∈": r"\in ", "°": r"^\circ ", "±": r"\pm ", "∓": r"\mp ", ";": ",",
})  # fmt: skip
RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻⁽⁾ⁱⁿ]+")
LOWERED = re.compile("[₀-₉₊₋₍₎]+")
ROOT = re.compile(r"(?:√|\\?(?<![A-Za-z])sqrt)\s*(?:\(([^()]*)\)|(?<=√)(\w))")
PI = re.compile(r"(?<![A-Za-z\\])pi(?![A-Za-z])")
UNION = re.compile(r"(?<=[)\]}])\s*(?:U|∪|union)\s*(?=[(\[{\\])")
INFINITY = re.compile(r"(?<![A-Za-z\\])(?:oo|inf|infinity)(?![A-Za-z])")
OF_ARGUMENT = re.compile(r"^\s*[A-Za-z]\s*\([^()=]{1,20}\)\s*=(?=[^=])")  # f(x) = at the begin
REPEATING = re.compile(r"(?<![\d.])(\d+)\.(\d*)\\overline\s*\{(\d+)\}")  # 0.1\overline{6}
VULGAR = re.compile("[¼-¾⅐-⅞]")


def bare(text: str) -> str:
    """Return the expression without what marks it, or the only one that a sentence marks."""
    text = re.sub(r"\\\$", "", unstressed(text))
    if whole := re.fullmatch(r"\\text\s*\{([^{}]*)\}", text):
        return bare(whole[1])
    if boxes := list(BOXED.finditer(text)):
        return bare(braced(text[boxes[0].end() :])) if len(boxes) == 1 else text
    marked = list(MARKED.finditer(text))
    if len(marked) == 1:
        outside = text[: marked[0].start()] + text[marked[0].end() :]
        inside = next(each for each in marked[0].groups() if each)
        if carries(outside):
            return inside.strip()
        return f"{inside} {outside.strip()}" if _unit(f"1 {outside.strip(' .')}") else text
    if text.count("$") == 1:  # of a currency
        text = text.replace("$", "")
    text = VULGAR.sub(lambda found: "\\frac{" + unicodedata.normalize("NFKC", found[0]).replace("⁄", "}{") + "}", text)
    text = re.sub(r"^([+-]?\d+)\s+(\d+)\s*/\s*(\d+)$", r"\1\\frac{\2}{\3}", text)
    text = RAISED.sub(lambda found: f"^{_grouped(found[0])}", text)
    text = LOWERED.sub(lambda found: f"_{_grouped(found[0])}", text)
    text = OF_ARGUMENT.sub("", re.sub(r"\+\s*/\s*-", "±", text))
    return text.translate(SIGNS).rstrip(".").strip()


def _grouped(digits: str) -> str:
    """Return raised or lowered digits as a group of ordinary ones."""
    return "{" + unicodedata.normalize("NFKC", digits).replace("−", "-") + "}"


def braced(text: str) -> str:
    """Return the text before the brace that closes."""
    depth = 1
    for place, each in enumerate(text):
        depth += (each == "{") - (each == "}")
        if depth == 0:
            return text[:place]
    return text


def plain(text: str) -> str:
    """Return the text without parts that do not change its meaning."""
    text = re.sub(r"\\(?:left|right|text|mathrm|[,;:! ])|[\s{}$]", "", text).casefold()
    return text[1:-1] if text.startswith("(") and text.endswith(")") else text


def unit(text: str) -> str:
    """Return the unit at the end; empty if there is none."""
    found = _unit(text)
    shown = re.sub(r"\s|[{}]|\\[a-z]+", "", found[0]).casefold() if found else ""
    return known.UNITS.get(shown, shown)


def without_unit(text: str) -> str:
    return text[: found.start()].rstrip() if (found := _unit(text)) else text


def _unit(text: str) -> re.Match[str] | None:
    found = _UNIT.search(text)
    if not found and (named := _WORDS_OF_UNIT.search(text)) and all(each in _KNOWN for each in re.findall("[A-Za-z]+", named[1])):
        found = named
    words = re.findall("[A-Za-z]+", found[1]) if found else []
    changes = any({word, word.lower()} & _NO_UNIT or known.LARGE.search(word) or known.PART.fullmatch(word) for word in words)
    return None if changes else found


def in_short(text: str) -> str:
    """Return the same expression with fewer ways of writing."""
    text = SYNONYM.sub(lambda found: SYNONYMS[found[0]], SPACED.sub(" ", text))
    text = NEAR.sub("=", STYLE.sub("", text)).lstrip(" =")
    text = THOUSANDS.sub("", text) if text[:1] not in "([{\\" else text.replace("{,}", "")
    text = GAMMA.sub(STAND_IN, GREEK.sub(r"\\\1 ", without_unit(text)))
    text = NAMED.sub(r"\\\1 ", LONE.sub(r" \1 ", text))
    text = OVER.sub(r"\1 \\cdot ", NEGATIVE.sub(r"^{\1}", NUMBERED.sub(r"\1_{\2}", in_full(text))))
    text = FACTOR.sub(r"\\cdot ", DOUBLE_STRUCK.sub(r"\\mathbb{\1}", LOWER.sub(r"_{\1}", text)))
    text = INFINITY.sub(r"\\infty ", UNION.sub(r" \\cup ", REPEATING.sub(_repeated, text)))
    text = ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", PI.sub(r"\\pi ", text))
    return text.strip()


def _repeated(found: re.Match[str]) -> str:
    """Return a decimal whose last digits repeat, as a fraction."""
    whole, fixed, repeated = found.groups()
    under = (10 ** len(repeated) - 1) * 10 ** len(fixed)
    return f"\\frac{{{int(whole + fixed + repeated) - int(whole + fixed)}}}{{{under}}}"


def in_full(text: str) -> str:
    """Return the expression with braces around both parts of each fraction."""
    for match in reversed(list(FRACTION.finditer(text))):
        place, parts = match.end(), list[str]()
        while len(parts) < 2 and (begin := ARGUMENT.match(text, place)):
            inside = braced(text[begin.end() :]) if begin[1] == "{" else begin[1]
            place = begin.end() + (len(inside) + 1 if begin[1] == "{" else 0)
            parts.append(inside)
        if len(parts) == 2:
            text = f"{text[: match.start()]}\\{match[1]}{{{parts[0]}}}{{{parts[1]}}}{text[place:]}"
    return text


def listed(text: str) -> tuple[str, list[str]]:
    """Return what is around the text, and its parts between commas outside all brackets; an interval is one part."""
    inside = text.replace("\\{", "{").replace("\\}", "}").replace("\\lbrace", "{").replace("\\rbrace", "}")
    around = next((left for left, right in ("()", "[]", "{}") if inside.startswith(left) and _closes(inside, right)), "")
    inside = inside[1:-1] if around else inside
    parts, depth, begin = [], 0, 0
    for place, each in enumerate(inside):
        depth += (each in "([{") - (each in ")]}")
        if each == "," and depth == 0:
            parts.append(inside[begin:place])
            begin = place + 1
    parts.append(inside[begin:])
    return (around, parts) if depth == 0 else ("", [text])


def _closes(text: str, right: str) -> bool:
    """Return whether the first bracket closes with the last sign, which is `right`."""
    depth = 0
    for place, each in enumerate(text):
        depth += (each in "([{") - (each in ")]}")
        if depth == 0:
            return place == len(text) - 1 and each == right
    return False
