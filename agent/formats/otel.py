"""Trajectories as spans of OpenTelemetry, in JSON of OTLP, with the attributes that it gives generative models."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from nbrl.agent.trajectory import Step, Trajectory

INTERNAL, CLIENT = 1, 3  # kinds of spans
OK, ERROR = 1, 2  # statuses
NS = 1_000_000_000


def spans(trajectory: Trajectory, model: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return one object of a file of OTLP: a span of the agent, and below it one for each generation, cell and call of a tool.

    `facts` are attributes of the agent's span.
    """
    trace = hashlib.sha256(trajectory.id.encode()).hexdigest()[:32]
    begin = int(trajectory.started_at * NS)
    about = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "nbrl",
        "gen_ai.conversation.id": trajectory.id,
        "gen_ai.request.model": model,
        "nbrl.question": trajectory.question,
        "nbrl.answer": trajectory.answer or "",
        "nbrl.status": trajectory.status.value,
        **{f"nbrl.{name}": value for name, value in facts.items() if value is not None},
    }
    top = _span(trace, "", "agent", "invoke_agent nbrl", INTERNAL, begin, begin + int(trajectory.seconds * NS), about)
    below = list(_below(trajectory, trace, top["spanId"], model))
    resource = {"attributes": _attributes({"service.name": "nbrl"})}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "nbrl"}, "spans": [top, *below]}]}]}


def _below(trajectory: Trajectory, trace: str, parent: str, model: str) -> Iterator[dict[str, Any]]:
    sampled = {node.step: (node, len(trajectory.path(node.parent))) for node in trajectory.sampled()}
    clock = trajectory.started_at
    for number, step in enumerate(trajectory.steps):
        begin, end = int(clock * NS), int((clock + step.policy_seconds) * NS)
        used = {}
        if number in sampled:
            node, length = sampled[number]
            used = {"gen_ai.usage.input_tokens": length, "gen_ai.usage.output_tokens": len(node.token_ids)}
        said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": model, **used, "nbrl.thought": step.think}
        said |= {"nbrl.text": step.observation if step.kind == "summary" else step.code}
        yield _span(trace, parent, f"chat {number}", f"chat {model}", CLIENT, begin, end, said)
        yield from _tools(trace, parent, number, step, end)
        clock += step.policy_seconds + step.kernel_seconds


def _tools(trace: str, parent: str, number: int, step: Step, begin: int) -> Iterator[dict[str, Any]]:
    end = begin + int(step.kernel_seconds * NS)
    if step.kind == "cell" and not step.malformed:
        cell = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "python", "nbrl.output": step.observation}
        failed = step.cell_status not in ("ok", "none")
        yield _span(trace, parent, f"cell {number}", "execute_tool python", INTERNAL, begin, end, cell, failed)
    for place, call in enumerate(step.tool_calls):
        used = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call.name}
        used |= {"nbrl.arguments": call.arguments, "nbrl.result": call.result}
        over = begin + int(call.seconds * NS)
        yield _span(
            trace, parent, f"call {number} {place}", f"execute_tool {call.name}", INTERNAL, begin, over, used, not call.ok
        )


def _span(
    trace: str,
    parent: str,
    place: str,
    name: str,
    kind: int,
    begin: int,
    end: int,
    about: Mapping[str, Any],
    failed: bool = False,
) -> dict[str, Any]:
    """Return a span; its id is made of the trajectory's and its place, so that the same one is exported twice alike."""
    return {
        "traceId": trace,
        "spanId": hashlib.sha256(f"{trace} {place}".encode()).hexdigest()[:16],
        "parentSpanId": parent,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(begin),
        "endTimeUnixNano": str(end),
        "attributes": _attributes(about),
        "status": {"code": ERROR if failed else OK},
    }


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
    return {"stringValue": str(value)}
