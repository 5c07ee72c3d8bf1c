"""The meaning of words and signs beside a number: factors, shares, parts, currencies, units, and what makes an expression
of it.
"""

import re
from fractions import Fraction

_TENS = {
    "hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12, "quadrillion": 15,
    "quintillion": 18, "k": 3, "mio": 6, "mln": 6, "mn": 6, "milliard": 9, "mrd": 9, "bn": 9, "tn": 12, "grand": 3, "thou": 3,
    "bil": 9, "bln": 9, "tril": 12, "trn": 12, "mill": 6,
    "百": 2, "千": 3, "万": 4, "萬": 4, "亿": 8, "億": 8, "兆": 12, "천": 3, "만": 4, "억": 8, "조": 12,
}  # fmt: skip
FACTORS = {**{f"{name}{ending}": Fraction(10) ** tens for name, tens in _TENS.items() for ending in ("", "s")}}
FACTORS |= dict.fromkeys(("dozen", "dozens"), Fraction(12))
CURRENCIES = {
    "$": "dollar dollars usd", "€": "euro euros eur", "£": "pound pounds gbp", "¥": "yen jpy", "¢": "cent cents",
    "₹": "rupee rupees inr",
}  # fmt: skip
SIGNS_OF_MONEY = {"US$": "$", "USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹"}
MONEY_FIRST = re.compile(r"^(US\$|USD|EUR|GBP|JPY|INR)(?=\s*[\d.+-])", re.IGNORECASE)
MONEY = {"k": 3, "m": 6, "mm": 6, "b": 9, "t": 12}  # letters behind an amount of money
SHARES = {
    "%": 0, "‰": -1, "‱": -2, "percent": 0, "percents": 0, "por ciento": 0, "pour cent": 0, "per cento": 0,
    "prozent": 0, "per cent": 0, "pct": 0, "per mille": -1, "per mill": -1, "permille": -1,
    "basis points": -2, "bp": -2, "basis point": -2, "bps": -2, "ppm": -4, "ppb": -7,
}  # fmt: skip
PART = re.compile(
    r"hal(?:f|ves)|(?:third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|\w*teenth|\w*tieth|\w*hundredth"
    r"|\w*thousandth|\w*illionth)s?"
)
# Words that may change the value: a unit with one of them may not be left out.
BINDING = {
    *FACTORS,
    "percent",
    "percentage",
    "pp",
    "pct",
    "mil",
    "fold",
    "score",
    "doz",
    "mille",
    "gross",
    "double",
    "triple",
    "twice",
    *("tens", "ones", "scores", "myriad", "myriads", "pair", "pairs", "couple", "couples", "trio"),
    *("kilo", "mega", "giga", "tera", "peta", "deci", "centi", "milli", "micro", "nano", "pico"),
    "bc",
    "bce",
} - {"k"}
_SPELT = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen " \
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"  # fmt: skip
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma upsilon chi psi omega"
_OPERATIONS = "x X z i I j e E n pi tau phi sqrt root log ln lg exp sin cos tan sec csc cot arcsin arccos arctan sinh cosh " \
    "tanh inf infinity oo plus minus over or to squared " \
    "not no none nor neither without except cubed factorial divided multiplied mod modulo choose " \
    "base binary hexadecimal octal decimal negative positive below above under wrong incorrect false never"  # fmt: skip
# Words that make an expression of the number: 7i, 6x, 2 pi, 3 squared, 4 or five.
EXPRESSION = {*_SPELT.split(), *_OPERATIONS.split(), *_GREEK.split()}
# What is neither a letter nor in units, and a sign of multiplication that joins no two letters.
SIGNS = re.compile(r"[^\w\s%‰‱$€£¥¢°'\"′″/.,:;?()\[\]&^*·⋅×−-]|[α-λν-ω∞_]|(?<![^\W\d_])[*·⋅×]|[*·⋅×](?![^\W\d_])")
POWERS = tuple("^−0123456789")
LETTERS = re.compile(r"[百千万萬亿億兆]|[^\W\d_百千万萬亿億兆]+")
# Directly behind the digits they may be variables as well as units.
VARIABLES = re.compile(r"(?!in$|yr$)[abcfijknpqruvwxyz]{1,3}|[KGT]")
# What one or two small letters mean that are no variables.
SYMBOLS = {
    "m",
    "s",
    "g",
    "l",
    "h",
    "k",
    "kg",
    "mg",
    "km",
    "cm",
    "mm",
    "nm",
    "mi",
    "ft",
    "in",
    "yd",
    "lb",
    "oz",
    "ml",
    "cl",
    "dl",
    "hr",
    "cc",
    "ha",
    "ac",
    "of",
    "at",
    "by",
    "an",
    *("sq", "cu", "pm", "am", "hp", "us"),
}
APPLIED = re.compile(r"^[(^]|[^\W\d_]\(")  # 3(a-b), 5^y, 2f(a)
# Names of large numbers, in other languages too.
LARGE = re.compile(
    r"ill?i?[oóõa]|illiard|illi?oe?n|illi?ar|mil(?:y|j)|googol|tausend|tusen|tysi|tuhat|ribu|juta|mi(?:la|lhões)|cento|hundert|honderd"
    r"|тыс|мил|млн|млрд|миллиард|трлн|процент|लाख|करोड़|مليون|ألف"
)
# A capital that may be a factor, where it can hardly be a unit.
CAPITAL = re.compile(r"[MB]|[KMBGT] .+")
_SPELLINGS = {
    "m": "meter meters metre metres", "km": "kilometer kilometers kilometre kilometres kms",
    "cm": "centimeter centimeters centimetre centimetres cms", "mm": "millimeter millimeters millimetre millimetres",
    "kg": "kilogram kilograms kgs", "g": "gram grams", "s": "second seconds sec secs", "min": "minute minutes mins",
    "h": "hour hours hr hrs", "l": "liter liters litre litres", "ml": "milliliter milliliters millilitre millilitres",
    "°": "degree degrees", "rad": "radian radians",
    "in": "inch inches", "ft": "foot feet", "mi": "mile miles", "yd": "yard yards",
    "day": "days", "week": "weeks", "month": "months", "year": "years yr yrs", **CURRENCIES,
}  # fmt: skip
UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}
# Units that are others in capitals: Mb and MB, nm and Nm, pA and Pa.
CASED = frozenset(["mb", "gb", "kb", "tb", "nm", "pa", "mw", "mv", "ma", "mhz", "ms", "mj", "ps", "mpa", "megab", "megan"])
