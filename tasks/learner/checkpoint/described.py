"""Reads what a pickle describes without making it: it may name any program, and more than a memory holds."""

from dataclasses import dataclass
from pickletools import genops
from typing import Any, NamedTuple

PLAIN = frozenset(["BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE"])
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class Named(NamedTuple):
    """A class or a function, which is not looked for."""

    module: str
    name: str


@dataclass(eq=False)
class PickledObject:
    """The object that calling `kind` with `arguments` would make, and the state that it would then get."""

    kind: Any
    arguments: Any
    state: Any = None


class Pairs(list[tuple[Any, Any]]):
    """The keys and values of a dictionary, whose keys may be anything."""


def described(data: bytes) -> Any:
    """Return the value, made of plain ones, lists, tuples, Pairs, Named and PickledObject. Raises ValueError for a pickle of
    anything else, and LookupError for one that is damaged.
    """
    stack: list[Any] = []
    below: list[list[Any]] = []  # the stacks below each mark
    memo: dict[Any, Any] = {}
    for operation, argument, _ in genops(data):
        name = operation.name
        if name in PLAIN:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in TUPLES:
            stack[-TUPLES[name] :] = [tuple(stack[-TUPLES[name] :])]
        else:
            match name:
                case "PROTO" | "FRAME":
                    pass
                case "MARK":
                    below.append(stack)
                    stack = []
                case "EMPTY_TUPLE":
                    stack.append(())
                case "EMPTY_LIST":
                    stack.append([])
                case "EMPTY_DICT":
                    stack.append(Pairs())
                case "TUPLE" | "APPENDS" | "SETITEMS":
                    items, stack = stack, below.pop()
                    if name == "TUPLE":
                        stack.append(tuple(items))
                    else:
                        stack[-1].extend(items if name == "APPENDS" else zip(items[::2], items[1::2], strict=True))
                case "APPEND":
                    item = stack.pop()
                    stack[-1].append(item)
                case "SETITEM":
                    value, key = stack.pop(), stack.pop()
                    stack[-1].append((key, value))
                case "GLOBAL":
                    stack.append(Named(*str(argument).split(" ", 1)))
                case "STACK_GLOBAL":
                    last, module = stack.pop(), stack.pop()
                    stack.append(Named(module, last))
                case "REDUCE" | "NEWOBJ":
                    arguments, kind = stack.pop(), stack.pop()
                    stack.append(PickledObject(kind, arguments))
                case "BUILD":
                    state = stack.pop()
                    stack[-1].state = state
                case "MEMOIZE":
                    memo[len(memo)] = stack[-1]
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "STOP":
                    return stack.pop()
                case _:
                    raise ValueError(f"it has the operation {name}, which describes no plain object")
    raise ValueError("it ends in the middle")
