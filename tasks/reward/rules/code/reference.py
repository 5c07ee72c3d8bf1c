"""The reference of the rule `code`: tests, their setup, and the names of the functions that an answer must define."""

import ast
import builtins
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.tasks.reward.rules.code.values import ValueTooLargeError, message

SETUP = "setup"
BUILTINS = frozenset((*vars(builtins), "__name__"))


class Reference(BaseModel):
    """Tests are statements that fail by an error; `setup` comes before them and before the answer."""

    model_config = ConfigDict(extra="forbid", strict=True)

    setup: str = ""
    tests: list[str] = Field(min_length=1)
    entry_points: list[str]


def reference_of(tests: Iterable[str], setup: str = "", entry_points: Iterable[str] = ()) -> str:
    """Return a reference as JSON. Without entry points they are the functions that tests call and nothing else defines."""
    given, points = list(tests), list(entry_points)
    with suppress(SyntaxError, ValueError, RecursionError):  # `complaint` says it
        points = points or _called(setup, given)
    return Reference(setup=setup, tests=given, entry_points=points).model_dump_json() if given else ""


@cache
def complaint(reference: str) -> str:
    """Return what is wrong with a reference, as the end of a sentence about its question; empty if nothing is."""
    if not reference:
        return "has no tests; give it some in the column tests"
    try:
        read = Reference.model_validate_json(reference)
        message(read.model_dump())
    except (ValidationError, ValueTooLargeError) as error:
        return f"has tests that cannot be read: {' '.join(str(error).split())[:200]}"
    names = []
    for where, source in _sources(read):
        try:
            names.append(_names(ast.parse(source)))
        except (SyntaxError, ValueError, RecursionError) as error:
            return f"has a {where} that is no Python: {error}"
    if not read.entry_points:
        return "has tests that call no function; name the functions that they test in entry_points"
    for name in read.entry_points:
        if not name.isidentifier() or name in BUILTINS:
            return f"has the entry point {name[:80]!r}, which is no name of a function that an answer could define"
    known = BUILTINS | names[0][0] | set(read.entry_points)
    for (where, _), (bound, used) in zip(_sources(read), names, strict=True):
        if "*" not in known and (unknown := sorted(used - known - bound)):
            return f"has a {where} that uses {unknown[0]!r}, which neither its setup nor an entry point defines"
        if where != SETUP and not used & set(read.entry_points):
            remedy = f"end it with check({read.entry_points[0]})" if "check" in bound else "let it call one, or leave it out"
            return f"has a {where} that calls none of its entry points; {remedy}"
    return ""


def _sources(reference: Reference) -> list[tuple[str, str]]:
    """Return its setup and tests, each with its name."""
    return [(SETUP, reference.setup), *((f"test {place}", test) for place, test in enumerate(reference.tests, 1))]


def _called(setup: str, tests: Iterable[str]) -> list[str]:
    """Return the names of functions that tests call without defining them."""
    known = BUILTINS | _names(ast.parse(setup))[0]
    called: dict[str, None] = {}
    for test in tests:
        tree = ast.parse(test)
        bound, _ = _names(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in known | bound:
                called[node.func.id] = None
    return list(called)


def _names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names that a source binds anywhere, `*` for a star import, and those that it uses."""
    bound: set[str] = set()
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add(other or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                bound.add(name)
    return bound, used
