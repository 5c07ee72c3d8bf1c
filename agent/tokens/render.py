"""Runs ALONE, as a program: renders chat templates, one request in a line of JSON each, and answers in a line of JSON.

Usage: python -I render.py

A template is a program of the author of the model. This process has no environment, little memory, and little time for each
request; it ends with a template that takes more. It imports nothing of this package.
"""

import json
import math
import resource
import sys
from datetime import date
from functools import cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 1 << 30
CPU_S = 1  # of one request, rounded up to whole seconds
MAX_CHARS = 4 << 20  # of a rendered conversation
REASON_CHARS = 1000


class GenerationTag(Extension):
    """The tag around what the assistant says, by which trainers mask; here it says nothing."""

    tags = frozenset({"generation"})  # type: ignore[assignment]

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def as_json(value: Any, indent: int | None = None, **how: Any) -> str:
    """Return JSON as transformers writes it: no character is escaped for HTML."""
    return json.dumps(value, indent=indent, ensure_ascii=how.pop("ensure_ascii", False), **how)


@cache
def compiled(source: str, day: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": date.fromisoformat(day).strftime}
    environment.filters["tojson"] = as_json
    return environment.from_string(source)


def answer(source: str, day: str, variables: dict[str, Any]) -> dict[str, str]:
    """Return `text`, or `refused` with the reason."""
    try:
        text = compiled(source, day).render(**variables)
    except Exception as error:
        reason = " ".join(str(error)[:REASON_CHARS].split())
        return {"refused": reason or type(error).__name__}
    return {"text": text} if len(text) <= MAX_CHARS else {"refused": f"it makes {len(text)} characters of a few words"}


def main() -> None:
    for what, limit in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, 0)):
        resource.setrlimit(what, (limit, limit))
    for line in sys.stdin.buffer:
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = math.ceil(used.ru_utime + used.ru_stime) + CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        sys.stdout.write(json.dumps(answer(*json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
