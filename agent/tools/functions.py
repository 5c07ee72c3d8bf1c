"""Makes a tool from a typed Python function with a docstring, which provides its name, description, schema and checks."""

import ast
import asyncio
import copy
import inspect
import re
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic_core import PydanticUndefined, to_jsonable_python

from nbrl.agent.errors import ToolError
from nbrl.agent.tools import names
from nbrl.agent.tools.base import Parameter
from nbrl.agent.tools.names import check_parameter_name, check_tool_name

_ARGUMENT = re.compile(r"(\w+)(?: *\([^)]*\))?: *(.*)")


class FunctionTool:
    """nbrl.agent.tools.base.Tool of one function, plain (run in a thread) or async.

    Every parameter is annotated with a type that pydantic can check; defaults are JSON. The docstring's first paragraph is the
    summary; its `Args:` section (`name: help`) describes the parameters. Raises ToolError when the function is not like that.
    """

    def __init__(self, function: Callable[..., Any], name: str | None = None) -> None:
        self.name = name or function.__name__
        check_tool_name(self.name)
        text = inspect.getdoc(function) or ""
        self.summary, self.details, helps = split_docstring(text)
        if not self.summary:
            raise ToolError(f"the tool {self.name} has no docstring; say what it does, the agent reads it")
        hints = get_type_hints(function, include_extras=True)
        self.returns = names.of_annotation(hints["return"]) if "return" in hints else ""
        parameters = [_parameter(self.name, each, hints, helps) for each in inspect.signature(function).parameters.values()]
        self.parameters = tuple(sorted(parameters, key=lambda parameter: not parameter.required))
        self._function, self._async = function, inspect.iscoroutinefunction(function)
        self._model, self._keys = _model(self.name, self.parameters, hints)
        self.schema: dict[str, Any] = self._model.model_json_schema()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, on the host."""
        return self._function(*args, **kwargs)

    def named(self, name: str) -> "FunctionTool":
        """Return the same function under another name."""
        return FunctionTool(self._function, name)

    def bound(self, function: Callable[..., Any]) -> "FunctionTool":
        """Return the same tool of another function, an async one that takes the same arguments by their names."""
        other = copy.copy(self)
        other._function, other._async = function, True
        return other

    async def call(self, arguments: dict[str, Any]) -> Any:
        """Validate arguments. Raises ValueError in one sentence."""
        try:
            checked = dict(self._model.model_validate(arguments))
        except ValidationError as error:
            raise ValueError(self._sentence(error)) from None
        values = {key: checked[field] for field, key in self._keys.items()}
        answer = await self._function(**values) if self._async else await asyncio.to_thread(self._function, **values)
        return to_jsonable_python(answer)

    def _sentence(self, error: ValidationError) -> str:
        faults = error.errors(include_url=False, include_input=False)
        fault, place = faults[0], ".".join(map(str, faults[0]["loc"]))[:100]
        match fault["type"]:
            case "missing":
                fault_text = f"the argument {place} is missing"
            case "extra_forbidden":
                fault_text = f"there is no argument {place!r}; it takes {', '.join(p.name for p in self.parameters) or 'none'}"
            case _:
                fault_text = f"the argument {place} does not fit: {fault['msg'][:1].lower()}{fault['msg'][1:300]}"
        return fault_text if len(faults) == 1 else f"{fault_text} (and {len(faults) - 1} more faults)"


def tool(function: Callable[..., Any]) -> FunctionTool:
    """Return the decorated function as a tool; calling it still calls the function."""
    return FunctionTool(function)


def split_docstring(text: str) -> tuple[str, str, dict[str, str]]:
    """Return the first paragraph as one line, the paragraphs that follow, and the help of each argument in `Args:`."""
    body, _, section = text.partition("\nArgs:\n")
    first, _, rest = body.strip().partition("\n\n")
    helps: dict[str, str] = {}
    last = ""
    for line in section.splitlines():
        if line and not line.startswith(" "):
            break
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if (match := _ARGUMENT.fullmatch(stripped)) and indent <= 4:
            last = match[1]
            helps[last] = match[2]
        elif stripped and last:
            helps[last] += f" {stripped}"
    return " ".join(first.split()), rest.strip(), helps


def _parameter(tool_name: str, each: inspect.Parameter, hints: dict[str, Any], helps: dict[str, str]) -> Parameter:
    check_parameter_name(tool_name, each.name)
    if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
        raise ToolError(f"the tool {tool_name} takes {each}; a tool's parameters are named one by one")
    if each.name not in hints:
        raise ToolError(f"the parameter {each.name} of the tool {tool_name} has no type; annotate it")
    kind, text = names.of_annotation(hints[each.name]), helps.get(each.name, "")
    if each.default is each.empty:
        return Parameter(each.name, each.name, kind, text)
    if not _is_literal(each.default):
        raise ToolError(f"the default of {each.name} of the tool {tool_name} is not JSON; take a string, a number, a list, …")
    return Parameter(each.name, each.name, kind, text, required=False, default=each.default)


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def _model(name: str, parameters: tuple[Parameter, ...], hints: dict[str, Any]) -> tuple[type[BaseModel], dict[str, str]]:
    """Return a closed model of the arguments; its fields are numbered, so that no name clashes with pydantic's own."""
    fields: dict[str, Any] = {}
    for number, each in enumerate(parameters):
        default = PydanticUndefined if each.required else each.default
        fields[f"p{number}"] = (hints[each.name], Field(default, alias=each.name, description=each.help or None))
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        model.model_json_schema()
    except PydanticUserError as error:
        raise ToolError(f"the tool {name} has a parameter of a type that cannot be checked: {error}") from error
    return model, {f"p{number}": each.name for number, each in enumerate(parameters)}
