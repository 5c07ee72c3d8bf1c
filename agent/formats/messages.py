"""Trajectories as conversations: JSON with `messages`, as chat servers take them and fine-tuning programs read them."""

from typing import Any

from nbrl.agent.grammar import Grammar
from nbrl.agent.text import turns_in
from nbrl.agent.trajectory import Step, Trajectory


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
            asked = [{"role": role, "content": text} for role, text in turns_in(step.observation)]
            return [*asked, {"role": "assistant", "content": step.code, **thought}]
        case "summary":
            return [{"role": "user", "content": f"<summary>{step.observation}</summary>"}]
    said = step.think if step.malformed else grammar.write(step.think, step.code)
    answer = {"role": "user", "content": f"<output>{step.observation}</output>"}
    return [{"role": "assistant", "content": said, **({"weight": 0} if step.malformed else {})}, answer]
