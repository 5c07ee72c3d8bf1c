"""Parses JSON and YAML that may be hostile: any fault is a ValueError, and parsing is bounded. JSON objects may carry the digest
of their own fields, so that damage is never read as other content.
"""

import hashlib
import json
import re
from typing import Any

import yaml

from nbrl.infra.errors import DamagedError

YAML_BYTES = 1 << 20
NUMBERS = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
DEPTH, BITS = 100, 64
NO_TEXT = re.compile("[\\0\ud800-\udfff]")
SEAL = "sha256"


def json_value(data: str | bytes, unique: bool = False) -> Any:
    """Return the value of JSON, whose objects with `unique` have no key twice, else the last counts. Raises ValueError."""
    try:
        return json.loads(data, object_pairs_hook=_unique if unique else None)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


def yaml_value(text: str | bytes) -> Any:
    """Return the value of YAML of settings. Raises ValueError, in one line, for aliases, duplicate keys and any other fault."""
    if len(text) > YAML_BYTES:
        raise ValueError(f"it is longer than {YAML_BYTES >> 20} MB")
    try:
        return as_settings(yaml.load(text, _Loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem}") from error
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (LookupError, AttributeError, ArithmeticError) as error:  # of the loader's, for a tag that does not suit its value
        raise ValueError("a value is not what its tag says") from error


def as_settings(value: Any) -> Any:
    """Return the value, if files, programs and servers can take what is in it. Raises ValueError."""
    left = [(value, 0)]
    while left:
        each, depth = left.pop()
        if depth > DEPTH:
            raise ValueError("it is nested too deep")
        if isinstance(each, int) and each.bit_length() > BITS:
            raise ValueError(f"a number has more than {BITS} bits")
        if isinstance(each, str) and (match := NO_TEXT.search(each)):
            raise ValueError(f"a text has the character {match[0]!r}, which no text may have")
        if isinstance(each, bytes):
            raise ValueError("a value is bytes; write text")
        if isinstance(each, dict):
            left += [(below, depth + 1) for pair in each.items() for below in pair]
        elif isinstance(each, list | tuple | set):
            left += [(below, depth + 1) for below in each]
    return value


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key, where YAML would take the last, and aliases, by which a few lines can mean millions.

    `1:30` is a text, as in YAML 1.2, where YAML 1.1 takes it for a number to the base of 60.
    """

    def resolve(self, kind: type[yaml.Node], value: str, implicit: tuple[bool, bool]) -> str:
        tag: str = super().resolve(kind, value, implicit)
        return self.DEFAULT_SCALAR_TAG if tag in NUMBERS and ":" in value else tag

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        if node.tag in NUMBERS and ":" in value:
            raise yaml.constructor.ConstructorError(problem=f"{value[:40]!r} is no number", problem_mark=node.start_mark)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):  # a key that is no scalar
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(problem=f"{key.value!r} is there twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"*{event.anchor} refers to another value; write that value out"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


def seal(fields: dict[str, Any]) -> bytes:
    """Return the fields as JSON, with the key `sha256` over all others."""
    return json.dumps({**fields, SEAL: _digest(fields)}, indent=1).encode()


def unseal(data: bytes, where: str) -> dict[str, Any]:
    """Return the fields. Raises DamagedError where they are not what was sealed; an object without a seal is taken as it is."""
    try:
        fields = json_value(data)
    except ValueError as error:
        raise DamagedError(f"{where} is damaged: it is no JSON ({error}); bring it back from a copy") from error
    if not isinstance(fields, dict):
        raise DamagedError(f"{where} is damaged: it holds no fields; bring it back from a copy")
    digest = fields.pop(SEAL, None)
    if digest is not None and digest != _digest(fields):
        raise DamagedError(f"{where} is damaged: it is not what was written there; bring it back from a copy")
    return fields


def _digest(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
