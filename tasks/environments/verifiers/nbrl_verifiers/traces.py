"""The trace of a trajectory, as scorers of verifiers read it."""

import json
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.state import state_cls


def new_trace(task: Any, seed: int) -> Any:
    """Return the trace of a trajectory that begins; `info` has the seed, for tasks that draw anything."""
    return vf.Trace(
        task=vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
        state=state_cls(type(task))(),
        agent=vf.AgentInfo(config=vf.AgentConfig()),
        nodes=_opening(task.data),
        info={"seed": seed},
    )


def add_call(trace: Any, call: dict[str, Any]) -> None:
    """Add a call to a trace that is not complete yet, for its stops."""
    _append(trace.nodes, vf.AssistantMessage(tool_calls=[_tool_call(call)]), sampled=True)
    _append(trace.nodes, _told(call))


def complete(
    trace: Any, task: Any, steps: list[dict[str, Any] | None], calls: list[dict[str, Any]], answer: str | None, status: str
) -> None:
    """Write all that happened into the trace: of each step what was thought, the cell, its calls and what was observed.

    The answer is what the assistant says last, and empty where there is none.
    """
    nodes = _opening(task.data)
    for number, step in enumerate(steps):
        if step is None:  # a summary of the context, which says nothing
            continue
        made = [call for call in calls if call["step"] == number]
        said = vf.AssistantMessage(content=step["code"], reasoning_content=step["think"] or None)
        said.tool_calls = [_tool_call(call) for call in made] or None
        _append(nodes, said, sampled=True)
        for call in made:
            _append(nodes, _told(call))
        if step["observation"]:
            _append(nodes, vf.UserMessage(content=step["observation"]))
    _append(nodes, vf.AssistantMessage(content=answer or ""), sampled=True)
    trace.nodes = nodes
    trace.info |= {"answer": answer, "status": status}
    trace.is_completed = trace.ok = True
    if trace.stop_condition is None:
        trace.stop_condition = "agent_completed" if status in ("answered", "done") else "max_turns"


def _opening(data: Any) -> list[Any]:
    nodes: list[Any] = []
    if data.system_prompt:
        _append(nodes, vf.SystemMessage(content=data.system_prompt))
    for message in [vf.UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else data.prompt:
        _append(nodes, message)
    return nodes


def _append(nodes: list[Any], message: Any, sampled: bool = False) -> None:
    nodes.append(vf.MessageNode(parent=len(nodes) - 1 if nodes else None, message=message, sampled=sampled))


def _tool_call(call: dict[str, Any]) -> Any:
    return vf.ToolCall(id=call["id"], name=call["tool"], arguments=json.dumps(call["arguments"]))


def _told(call: dict[str, Any]) -> Any:
    return vf.ToolMessage(tool_call_id=call["id"], content=call["text"], name=call["tool"])
