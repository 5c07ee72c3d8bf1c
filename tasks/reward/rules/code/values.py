"""Values of Python as typed JSON and back, so that two programs exchange them and none has to unpickle or evaluate anything.

None, truth values, numbers, strings and lists are as JSON has them; anything else is an object with one key, its type.
"""

import builtins
import json
import numbers
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

LINE_BYTES = 1 << 20  # of a message
VALUES = 200_000  # within one value, itself included
DEPTH = 100
LARGE = 1 << 64  # whole numbers from here on are written in base 16, which has no limit of digits

# From the first that fits: a subclass is written as what it is a subclass of.
_CONTAINERS: dict[type[Collection[Any]], str] = {
    kind: kind.__name__ for kind in (tuple, set, frozenset, deque, Counter, defaultdict, OrderedDict, dict)
}

# Errors that a test can be shown. Those that end an iteration are not among them: `all(map(f, cases))` would be true.
_ENDS = (StopIteration, StopAsyncIteration, GeneratorExit)
RAISED: dict[str, type[BaseException]] = {
    kind.__name__: kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
    if not issubclass(kind, (*_ENDS, UnicodeError, BaseExceptionGroup))
}


class UnsupportedError(Exception):
    """A value of a type that has no form as JSON."""


class ValueTooLargeError(Exception):
    """A value, or a message, beyond VALUES, DEPTH or LINE_BYTES."""


def message(fields: Mapping[str, Any]) -> bytes:
    """Return a line of JSON. Raises TooLargeError."""
    line = json.dumps(fields).encode() + b"\n"
    if len(line) > LINE_BYTES:
        raise ValueTooLargeError(f"it has more than {LINE_BYTES} bytes as JSON")
    return line


def encode(value: Any) -> Any:
    """Return the value as what JSON can hold. Iterators are read to their end.

    Raises UnsupportedError, TooLargeError, and what an iterator raises.
    """
    return _Encoder().encode(value, 0)


class _Encoder:
    def __init__(self) -> None:
        self._left = VALUES
        self._bytes = LINE_BYTES

    def encode(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH:
            raise ValueTooLargeError(f"it has more than {VALUES} values, or is nested deeper than {DEPTH}")
        if isinstance(value, str | bytes | bytearray):
            self._bytes -= len(value)
            if self._bytes < 0:
                raise ValueTooLargeError(f"it has more than {LINE_BYTES} bytes")
        if value is None or isinstance(value, bool | str):
            return value
        if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):  # of no number's type
            return bool(value)
        if isinstance(value, numbers.Integral):  # those of numpy too
            whole = int(value)
            return whole if abs(whole) < LARGE else {"int": hex(whole)}
        if isinstance(value, numbers.Real) and not isinstance(value, numbers.Rational):
            return float(value)
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, bytes | bytearray):
            return {"bytes" if isinstance(value, bytes) else "bytearray": value.hex()}
        if isinstance(value, range):
            return {"range": self._all((value.start, value.stop, value.step), depth)}
        if isinstance(value, list):
            return self._all(value, depth)
        for kind, name in _CONTAINERS.items():
            if isinstance(value, kind):
                return {name: self._all(value.items() if isinstance(value, dict) else value, depth)}
        if isinstance(value, Iterator):
            return {"iterator": self._all(value, depth)}
        raise UnsupportedError(f"a value of the type {type(value).__name__} cannot be passed on")

    def _all(self, values: Iterable[Any], depth: int) -> list[Any]:
        return [self.encode(each, depth + 1) for each in values]


_MADE: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "complex": lambda parts: complex(*parts),
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda ends: range(*_all(ends)),
    "tuple": lambda values: tuple(_all(values)),
    "set": lambda values: set(_all(values)),
    "frozenset": lambda values: frozenset(_all(values)),
    "deque": lambda values: deque(_all(values)),
    "iterator": lambda values: iter(_all(values)),
    "dict": lambda pairs: dict(_pairs(pairs)),
    "OrderedDict": lambda pairs: OrderedDict(_pairs(pairs)),
    "defaultdict": lambda pairs: defaultdict(None, _pairs(pairs)),
    "Counter": lambda pairs: Counter(dict(_pairs(pairs))),
}


def decode(data: Any) -> Any:
    """Return the value that `encode` made JSON of, of plain types. Raises an error of any type for anything else."""
    if isinstance(data, list):
        return _all(data)
    if isinstance(data, dict):
        ((kind, content),) = data.items()
        return _MADE[kind](content)
    return data


def _all(values: list[Any]) -> list[Any]:
    return [decode(each) for each in values]


def _pairs(pairs: list[Any]) -> list[tuple[Any, Any]]:
    return [decode(pair) for pair in pairs]


def raised(error: BaseException) -> dict[str, Any]:
    """Return the part of an error that a test sees: the name of its type, or of the nearest builtin one, and its arguments."""
    name = next(kind.__name__ for kind in type(error).__mro__ if RAISED.get(kind.__name__) is kind)
    try:
        arguments = encode(list(error.args))
    except Exception:
        arguments = []
    return {"raised": name, "args": arguments}


def error_of(name: str, arguments: list[Any]) -> BaseException:
    """Return the error that `raised` described. Raises KeyError for an unknown name."""
    kind = RAISED[name]
    try:
        return kind(*decode(arguments))
    except Exception:
        return kind()
