"""Serves recorded calls again, so that a trajectory can be repeated offline with the same answers."""

import json
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Any

from nbrl.agent.tools.base import GIVEN_UP, Parameter, Tool, Toolbox, awaited
from nbrl.agent.tools.names import plain_names
from nbrl.agent.trajectory import ToolCall, Trajectory


class ReplayError(Exception):
    """The recording has no answer to a call."""


class Replay(Toolbox):
    """A toolbox that asks no service: answers of the `trajectories`, for the same name and arguments, in their order.

    `tools` gives the tools' words and signatures; one that is not among them has the arguments it was called with. A call that
    was not recorded, not recorded whole, or is made more often than it was, raises ReplayError.
    """

    def __init__(self, trajectories: Iterable[Trajectory], tools: Iterable[Tool] = ()) -> None:
        calls = [call for trajectory in trajectories for step in trajectory.steps for call in step.tool_calls]
        recorded: dict[str, list[ToolCall]] = defaultdict(list)
        for call in calls:
            recorded[call.name].append(call)
        by_name = {tool.name: tool for tool in tools}
        unknown = [_Unknown(name, found) for name, found in recorded.items() if name not in by_name]
        super().__init__([_Recorded(tool, recorded[tool.name]) for tool in (*by_name.values(), *unknown)])


class _Unknown:
    """The description of a tool that is known only from its calls."""

    summary, details, returns = "answers as it was recorded", "", ""

    def __init__(self, name: str, calls: list[ToolCall]) -> None:
        self.name = name
        arguments_of_calls = [json.loads(call.arguments) for call in calls if call.complete]
        keys = list(dict.fromkeys(key for arguments in arguments_of_calls for key in arguments))
        always = [key for key in keys if all(key in arguments for arguments in arguments_of_calls)]
        ordered = [*always, *(key for key in keys if key not in always)]
        names = plain_names(ordered)
        self.parameters = tuple(Parameter(names[key], key, required=key in always) for key in ordered)
        self.schema: dict[str, Any] = {"type": "object", "properties": {key: {} for key in ordered}, "required": always}

    async def call(self, arguments: dict[str, Any]) -> Any:
        raise ReplayError(f"{self.name} is known by its recorded calls only")


class _Recorded:
    """A tool that looks like `tool` and answers from `calls`."""

    def __init__(self, tool: Tool, calls: list[ToolCall]) -> None:
        self.name, self.summary, self.details, self.returns = tool.name, tool.summary, tool.details, tool.returns
        self.parameters, self.schema, self.awaited = tool.parameters, tool.schema, awaited(tool)
        self._answers: dict[str, deque[ToolCall]] = defaultdict(deque)
        for call in calls:
            if call.complete:
                self._answers[_canonical(json.loads(call.arguments))].append(call)
        self._known = frozenset(self._answers)

    async def call(self, arguments: dict[str, Any]) -> Any:
        key = _canonical(arguments)
        if key not in self._known:
            raise ReplayError(f"{self.name} was never recorded whole with these arguments; a replay asks no service")
        if not self._answers[key]:
            raise ReplayError(f"{self.name} was recorded with these arguments less often than it is called")
        recorded = self._answers[key].popleft()
        answer = json.loads(recorded.result)
        if recorded.ok:
            return answer
        if answer == GIVEN_UP:
            raise ReplayError(f"{self.name} had no answer in the recording: its cell gave up on it")
        raise _error(str(answer))


def _canonical(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, default=str)


def _error(recorded: str) -> Exception:
    """Return an error that a cell sees in the words of the recorded one, `type: message`."""
    name, _, message = recorded.partition(": ")
    # A time-out has words of its own at the channel; of any other error the cell sees type and message only.
    return TimeoutError(message) if name == "TimeoutError" else type(name[:100], (Exception,), {})(message)
