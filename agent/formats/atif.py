"""Trajectories in the Agent Trajectory Interchange Format, version 1.8 (the package `atif` reads it)."""

import json
from datetime import UTC, datetime
from typing import Any

from nbrl.agent.trajectory import Node, Step, Trajectory

VERSION = "ATIF-v1.8"
CELL = "python"  # the function that a cell calls


def atif(trajectory: Trajectory, model: str, version: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a trajectory as an object of the format. `model` and `version` say who acted, `facts` are kept beside it."""
    sampled = {node.step: (node, len(trajectory.path(node.parent))) for node in trajectory.sampled()}
    clock = trajectory.started_at
    steps = [{"source": "user", "message": trajectory.question, "timestamp": _time(clock)}]
    for number, step in enumerate(trajectory.steps):
        if step.kind == "reply" and step.observation not in (trajectory.question, f"user: {trajectory.question}"):
            steps.append({"source": "user", "message": step.observation, "timestamp": _time(clock)})
        clock += step.policy_seconds
        steps.append(_agent_step(number, step, clock, sampled.get(number)))
        clock += step.kernel_seconds
    own = [sampled[number] for number in range(len(trajectory.steps)) if number in sampled]  # children are calls of tools here
    read, written = sum(length for _, length in own), sum(len(node.token_ids) for node, _ in own)
    totals = {"total_prompt_tokens": read, "total_completion_tokens": written, "total_steps": len(steps)}
    about = {
        "group": trajectory.group,
        "sample": trajectory.sample,
        "status": trajectory.status.value,
        "answer": trajectory.answer,
    }
    more = {"ability": trajectory.ability, "environment": trajectory.environment, "seconds": trajectory.seconds}
    return {
        "schema_version": VERSION,
        "session_id": trajectory.id,
        "trajectory_id": trajectory.id,
        "agent": {"name": "nbrl", "version": version, "model_name": model},
        "steps": [{"step_id": place, **step} for place, step in enumerate(steps, 1)],
        "final_metrics": totals,
        "extra": {**about, **more, **facts},
    }


def _agent_step(number: int, step: Step, clock: float, sampled: tuple[Node, int] | None) -> dict[str, Any]:
    made: dict[str, Any] = {"source": "agent", "message": "", "timestamp": _time(clock), "llm_call_count": 1}
    if step.think:
        made["reasoning_content"] = step.think
    called = [_call(f"call_{number}_{place}", call.name, call.arguments) for place, call in enumerate(step.tool_calls, 1)]
    results = [
        {"source_call_id": call["tool_call_id"], "content": each.result}
        for call, each in zip(called, step.tool_calls, strict=True)
    ]
    match step.kind:
        case "cell" if not step.malformed:
            called.insert(0, {"tool_call_id": f"call_{number}_0", "function_name": CELL, "arguments": {"code": step.code}})
            results.insert(0, {"source_call_id": f"call_{number}_0", "content": step.observation})
        case "cell":
            made["extra"] = {"malformed": step.malformed}
        case "summary":
            made["message"] = step.observation
        case "reply":
            made["message"] = step.code
    if called:
        made |= {"tool_calls": called, "observation": {"results": results}}
    if sampled is not None:
        node, length = sampled
        made["metrics"] = {
            "prompt_tokens": length,
            "completion_tokens": len(node.token_ids),
            "completion_token_ids": node.token_ids,
            "logprobs": node.logprobs,
        }
    return made


def _call(identity: str, name: str, arguments: str) -> dict[str, Any]:
    """Return a call of a tool; arguments that were recorded in part are a text."""
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    return {
        "tool_call_id": identity,
        "function_name": name,
        "arguments": given if isinstance(given, dict) else {"recorded": arguments},
    }


def _time(clock: float) -> str:
    return datetime.fromtimestamp(clock, UTC).isoformat()
