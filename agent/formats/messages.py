"""Trajectories as conversations: JSON with `messages`, as chat servers take them and fine-tuning programs read them."""

import re
from typing import Any

from nbrl.agent.grammar import Grammar
from nbrl.agent.trajectory import Step, Trajectory

ROLE = re.compile(r"^(?:system|user|tool): ", re.MULTILINE)
INDENTED = re.compile(r"^ (?= *(?:system|user|assistant|tool): )", re.MULTILINE)  # lines of a text that would look as a role's


def conversation(trajectory: Trajectory, grammar: Grammar, facts: dict[str, Any]) -> dict[str, Any]:
    """Return a row with the task, what the agent wrote in its grammar, and what came back; `facts` are beside `messages`.

    The system prompt is left out: it is the run's own, and the same for all.
    """
    replies = any(step.kind == "reply" for step in trajectory.steps)
    messages = [] if replies else [{"role": "user", "content": trajectory.question}]
    for step in trajectory.steps:
        messages += _turns(step, grammar)
    return {"messages": messages, "id": trajectory.id, **facts}


def _turns(step: Step, grammar: Grammar) -> list[dict[str, Any]]:
    match step.kind:
        case "reply":
            thought = {"reasoning_content": step.think} if step.think else {}
            return [*_requested(step.observation), {"role": "assistant", "content": step.code, **thought}]
        case "summary":
            return [{"role": "user", "content": f"<summary>{step.observation}</summary>"}]
    said = step.think if step.malformed else grammar.write(step.think, step.code)
    answer = {"role": "user", "content": f"<output>{step.observation}</output>"}
    return [{"role": "assistant", "content": said, **({"weight": 0} if step.malformed else {})}, answer]


def _requested(observation: str) -> list[dict[str, Any]]:
    """Return the turns that a request of a program added, as a step shows them: each with its role before it."""
    starts = [found.start() for found in ROLE.finditer(observation)]
    if not starts or starts[0]:
        return [{"role": "user", "content": observation}]
    turns = [observation[start:end].rstrip("\n") for start, end in zip(starts, [*starts[1:], len(observation)], strict=True)]
    return [{"role": role, "content": INDENTED.sub("", content)} for role, _, content in (turn.partition(": ") for turn in turns)]
