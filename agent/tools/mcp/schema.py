"""Arguments of a call against the schema that a server gives, which is hostile: it may be made to take for ever."""

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from nbrl.agent.errors import ToolError

REFERENCES = 5  # of one schema to the next
CHECKS = 20_000
"""Entries of schema and arguments that are looked at in one call; what is left then is the server's to check."""


def checker(name: str, schema: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Return a function that finds the first fault of a call's arguments, or None. Raises ToolError for an invalid schema."""
    import jsonschema
    import referencing

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except (jsonschema.SchemaError, RecursionError) as error:
        reason = error.message[:200] if isinstance(error, jsonschema.SchemaError) else "it is nested too deep"
        raise ToolError(f"the tool {name} has no valid schema, leave it out: {reason}") from None
    left = [0]
    # A registry of its own: no reference in a schema makes the host fetch anything.
    rules = _bounded(left)(schema, registry=referencing.Registry())

    def check(arguments: dict[str, Any]) -> Any:
        left[0] = CHECKS
        try:
            return next(iter(rules.iter_errors(arguments)), None)
        except (_TooMuchError, RecursionError):
            return None

    return check


def local(schema: Any, root: Any) -> Any:
    """Return the schema, or the part of `root` that it refers to; any other reference allows everything."""
    for _ in range(REFERENCES):
        where = schema.get("$ref") if isinstance(schema, dict) else None
        if not isinstance(where, str):
            return schema
        part = root
        for key in where.removeprefix("#").split("/")[1:]:
            key = unquote(key).replace("~1", "/").replace("~0", "~")
            part = part.get(key) if isinstance(part, dict) else None
        words = {name: value for name, value in schema.items() if name == "description"}
        schema = {**part, **words} if isinstance(part, dict) and where.startswith("#") else {}
    return {}


class _TooMuchError(Exception):
    """A schema that takes more than CHECKS on these arguments."""


def _bounded(left: list[int]) -> Any:
    """Validate without unbounded work; the server validates everything itself.

    Skips `pattern`, which would run on a text of the cell. Raises _TooMuchError after as many steps as `left` has, since
    alternatives may be nested.
    """
    import jsonschema

    def additional(validator: Any, extra: Any, instance: Any, schema: dict[str, Any]) -> Iterable[Any]:
        if "patternProperties" in schema:
            return ()
        return plainly["additionalProperties"](validator, extra, instance, schema) or ()

    def unchecked(validator: Any, value: Any, instance: Any, schema: dict[str, Any]) -> Iterable[Any]:
        return ()

    def counted(rule: Callable[..., Any]) -> Callable[..., Any]:
        def check(validator: Any, value: Any, instance: Any, schema: dict[str, Any]) -> Iterable[Any]:
            left[0] -= 1 + sum(len(each) for each in (value, instance) if isinstance(each, dict | list))
            if left[0] < 0:
                raise _TooMuchError
            return rule(validator, value, instance, schema) or ()

        return check

    plainly = jsonschema.Draft202012Validator.VALIDATORS
    slow = ("pattern", "patternProperties", "unevaluatedProperties", "uniqueItems")
    rules = {**plainly, **dict.fromkeys(slow, unchecked), "additionalProperties": additional}
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, {name: counted(rule) for name, rule in rules.items()})
