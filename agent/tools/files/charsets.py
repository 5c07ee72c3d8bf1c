"""The text of bytes whose charset is named by a header, marked by their first bytes, or unknown. The bytes are hostile."""

import codecs
import re

UNNAMED = "utf-8-sig"
"""A charset that nothing names."""
_SAMPLE = 1 << 16
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32", codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}  # fmt: skip
# By which of four bytes are mostly 0.
_WIDE = {
    "0101": "utf-16-le", "1010": "utf-16-be", "0111": "utf-32-le", "0011": "utf-32-le", "1110": "utf-32-be", "1100": "utf-32-be",
}  # fmt: skip
_META = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# What browsers take a name for: pages that say Latin-1 are written in Windows' larger charset.
_READ_AS = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874", "tis-620": "cp874",
    "shift_jis": "cp932", "gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "big5": "big5hkscs", "utf-8": UNNAMED,
}  # fmt: skip
# Python's own, and one that browsers refuse: they take hours for a long text, or make halves of surrogate pairs.
_REFUSED = ("punycode", "idna", "unicode-escape", "raw-unicode-escape", "undefined", "utf-7")
_LATIN = ("cp1252", "cp1250", "cp1254")
_OTHERS = ["cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "cp874", "cp932", "euc_jp", "gb18030", "cp949", "big5"]
_OPENING = frozenset("‘‚“„«‹¿¡")
_PUNCTUATION = frozenset("’”»›–—…·°\xa0") | _OPENING


def known(name: str) -> str:
    """Return Python's name of a charset as browsers read it; UNNAMED for what is none of the web."""
    try:
        codec = codecs.lookup(name).name
        "".encode(codec)
    except (LookupError, ValueError, UnicodeError):
        return UNNAMED
    return UNNAMED if codec in _REFUSED else _READ_AS.get(codec, codec)


def decoded(data: bytes, charset: str = UNNAMED) -> str:
    """Return the text of `data`: by its mark, else in the `charset` that is named, else UTF-8, else in the charset that fits
    best.

    What a charset cannot hold is U+FFFD.
    """
    name = _marked(data) or known(charset)
    if name != UNNAMED or _is_named(charset):
        try:
            return data.decode(name, "replace")
        except (ValueError, UnicodeError):  # of a codec that cannot replace
            name = UNNAMED
    try:
        return data.decode(name)
    except UnicodeDecodeError:
        return data.decode(_guess(data[:_SAMPLE]), "replace")


def markup(data: bytes, charset: str = UNNAMED) -> str:
    """Return the text of a page as `decoded` gives it; without a `charset`, in the one that the page names, as browsers do."""
    if not _is_named(charset) and (match := _META.search(data[:1024])):
        name = match[1].decode("ascii", "replace")
        charset = "utf-8" if known(name).startswith("utf-16") else name  # what names itself in ASCII is not UTF-16
    return decoded(data, charset)


def _marked(data: bytes) -> str | None:
    """Return the charset by the first bytes, or by where others are 0. After a mark of UTF-16 ASCII alone cannot come."""
    name = next((name for mark, name in _MARKS.items() if data.startswith(mark)), None)
    if name is None and (quarter := len(sample := data[:_SAMPLE]) // 4):
        name = _WIDE.get("".join(str(int(2 * sample[place::4].count(0) > quarter)) for place in range(4)))
    return None if name == "utf-16" and data[2:].isascii() and b"\0" not in data else name


def _is_named(charset: str) -> bool:
    """Return whether it is a charset of the web."""
    return charset != UNNAMED and (known(charset) != UNNAMED or charset.lower().replace("_", "-") in ("utf-8", "utf8"))


def _guess(sample: bytes) -> str:
    """Return the charset that fits best: in Latin scripts by a few letters among those of ASCII, else by its statistics."""
    texts = {name: sample.decode(name, "replace") for name in _LATIN}
    odd = {name: _odd(text) for name, text in texts.items()}
    best = min(_LATIN, key=odd.__getitem__)
    words = [word for word in re.findall(r"[^\W\d_]+", texts[best]) if not word.isascii()]
    foreign = [sum(not letter.isascii() for letter in word) for word in words]
    few = 4 * sum(map(len, words)) >= 5 * sum(foreign) or max(foreign, default=0) < 2
    if few and 4 * odd[best] <= sum(foreign) and "ƒ" not in texts["cp1252"]:
        turkish = set(texts[best]) & set("þÞðÐ") and not set(texts[best]) & set("æÆáíóú")  # Icelandic has both
        return "cp1254" if turkish and best == "cp1252" else best
    from charset_normalizer import from_bytes

    guess = from_bytes(sample, cp_isolation=_OTHERS).best()
    return guess.encoding if guess is not None and sum(foreign) > 2 else UNNAMED


def _odd(text: str) -> int:
    """Return how many symbols are next to a letter, as a wrong charset puts them there."""
    around = zip(f" {text}", text, f"{text[1:]} ", strict=False)
    return sum(
        (before.isalpha() and mark not in _PUNCTUATION - _OPENING) or (after.isalpha() and mark not in _PUNCTUATION)
        for before, mark, after in around
        if not mark.isascii() and not mark.isalpha()
    )
