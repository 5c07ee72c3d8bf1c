"""Parses JSON and YAML that others may have written: whatever is wrong with it is a ValueError, and none of it takes for ever."""

import json
from typing import Any

import yaml


def json_value(data: str | bytes) -> Any:
    """The value of JSON. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def yaml_value(text: str | bytes) -> Any:
    """The value of YAML without aliases, in which no key stands twice in one mapping. Raises ValueError with a line of words."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ValueError(f"{place}{error.problem}") from error
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (yaml.YAMLError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice, where YAML would take the last, and aliases, by which a few lines can mean millions."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key.value, str):  # a key that is no scalar
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(problem=f"{key.value!r} stands twice", problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            problem = f"*{event.anchor} refers to another value; write that value out"
            raise yaml.composer.ComposerError(problem=problem, problem_mark=event.start_mark)
        found: yaml.Node | None = super().compose_node(parent, index)
        return found
