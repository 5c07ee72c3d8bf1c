"""A trajectory as a Jupyter notebook: nbformat 4.5, opened by JupyterLab, VS Code, nbconvert.

What a model or a cell wrote is hostile. In markdown it is escaped, so that it is read and never rendered as HTML, links, images
or mathematics; outputs are plain text and PNG files only. Opening runs nothing; running its cells is the reader's choice.
"""

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from nbrl.agent.pictures import picture_kind
from nbrl.agent.text import cut_middle, storable
from nbrl.agent.trajectory import Output, Step, ToolCall, Trajectory

TEXT_CHARS = 200_000
_NOTICES = {"timeout": "The cell took too long and was stopped.", "dead": "The kernel died.", "none": "The cell did not end."}
_KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
# Control characters but tab and line ends, and halves of surrogate pairs, which no UTF-8 file can hold.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
# Also the colon of an address, the first point of one without, and the @ of a mail address: bare ones become links.
_MEANINGFUL = re.compile(r"[`*_{}\[\]<>&#|~!@]|:(?=//)|(?<=www)\.", re.IGNORECASE)
# In a span of its own a delimiter of mathematics has no partner.
_MATHS = re.compile(r"[$\\]")


def notebook(trajectory: Trajectory, rewards: Mapping[str, Any] | None = None) -> NotebookNode:
    """Return a valid notebook of `trajectory`; `rewards` is its row of a rewards table, if it was scored.

    Thoughts and summaries are markdown cells, actions code cells with their outputs; children are folded below the cell that
    called them. What a reader does not see first is in the
    metadata under `nbrl`: status and rewards in the notebook's, thought, tool calls, notepad and step reward in each step's last
    cell. `nbrl.agent.notebook.recording` reads it again.
    """
    rewards = rewards or {}
    steps = rewards.get("step_rewards") or [None] * len(trajectory.steps)
    cells = [_markdown("task", f"# Task\n\n{literal(trajectory.question)}", {})]
    executed = 0
    for index, (step, reward) in enumerate(zip(trajectory.steps, steps, strict=True)):
        executed += step.kind == "cell" and not step.malformed
        cells += _step(index, step, reward, executed)
        if called := trajectory.called_by(index):
            texts = [_child(trajectory, place, first) for place, first in called]
            cells.append(_markdown(f"step-{index + 1}-children", "\n\n".join(texts), {}))
    cells.append(_markdown("answer", _ending(trajectory), {}))
    facts = trajectory.model_dump(mode="json", exclude={"nodes", "steps"})
    if rewards:
        facts["rewards"] = {name: value for name, value in rewards.items() if isinstance(value, float)}
    metadata = {"kernelspec": _KERNEL, "language_info": {"name": "python"}, "nbrl": _clean(facts)}
    return new_notebook(cells=cells, metadata=metadata)


def written(made: NotebookNode) -> bytes:
    """Return the notebook as the bytes of its file."""
    return (nbformat.writes(made) + "\n").encode()


def literal(text: str) -> str:
    """Return Markdown that shows `text` literally, line by line. Lists stay lists; nothing else is interpreted."""
    escaped = _MEANINGFUL.sub(lambda match: f"&#{ord(match[0])};", printable(text))
    lines = _MATHS.sub(lambda match: f"<span>&#{ord(match[0])};</span>", escaped).split("\n")
    return "  \n".join(_indented(line) for line in lines)


def _indented(line: str) -> str:
    """Keep leading blanks without making a code block, and lines of dashes or equals signs without making a heading."""
    body = line.lstrip(" \t")
    blanks = "&nbsp;" * len(line[: len(line) - len(body)].expandtabs(4))
    if body and not body.strip("-= "):
        body = f"&#{ord(body[0])};{body[1:]}"
    return blanks + body


def printable(text: str) -> str:
    """Return text that every file and reader accepts, with the middle of a very long one cut out."""
    return _UNPRINTABLE.sub("\ufffd", cut_middle(text.replace("\r\n", "\n").replace("\r", "\n"), TEXT_CHARS))


def _clean(value: Any) -> Any:
    """Return JSON that every reader accepts: printable texts, finite numbers."""
    match value:
        case str():
            return printable(value)
        case dict():
            return {printable(str(key)): _clean(item) for key, item in value.items()}
        case list():
            return [_clean(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _markdown(identity: str, source: str, metadata: dict[str, Any]) -> NotebookNode:
    return new_markdown_cell(source, id=identity, metadata=metadata)


def _step(index: int, step: Step, reward: float | None, count: int) -> list[NotebookNode]:
    """Return a step's cells; `count` is the number of its cell among those that ran."""
    name = f"step-{index + 1}"
    facts = step.model_dump(exclude={"code", "outputs", "observation", "tool_calls"})
    facts |= {"step": index + 1, "notepad": json.loads(step.notepad)}
    if step.kind != "cell" or step.malformed:
        facts["observation"] = step.observation
    if step.kind == "reply":
        facts["code"] = step.code
    if reward is not None:
        facts["reward"] = reward
    metadata = {"nbrl": _clean(facts) | {"tool_calls": [_call(call) for call in step.tool_calls]}}
    head = f"### Step {index + 1}\n\n{literal(step.think)}"
    if step.malformed:
        return [_markdown(f"{name}-malformed", f"{head}\n\n**Malformed action:** {literal(step.malformed)}", metadata)]
    if step.kind == "summary":
        return [_markdown(f"{name}-summary", f"{head}\n\n**Summary:** {literal(step.observation)}", metadata)]
    if step.kind == "reply":
        said = f"### Step {index + 1}\n\n**Request:** {literal(step.observation)}\n\n{literal(step.think)}"
        return [_markdown(f"{name}-reply", f"{said}\n\n**Reply:** {literal(step.code)}", metadata)]
    # Verbatim: with any other character it would be another program when it is run again.
    code = new_code_cell(storable(step.code), id=f"{name}-code", metadata=metadata, execution_count=count)
    code.outputs = [_output(output, count) for output in step.outputs]
    if step.cell_status in _NOTICES:
        code.outputs.append(new_output("stream", name="stderr", text=_NOTICES[step.cell_status] + "\n"))
    return [_markdown(f"{name}-think", head, {}), code]


def _child(trajectory: Trajectory, place: int, first: int) -> str:
    """Return a child, folded, with those that it called: text that runs nothing."""
    child = trajectory.children[place]
    parts = [f"<details><summary>{child.kind}, {child.status}</summary>", f"**Task:** {literal(child.task)}"]
    for index, step in enumerate(child.steps):
        said = [step.think, step.malformed or step.code, step.observation]
        parts += [f"**Step {index + 1}**", *(literal(text) for text in said if text)]
        parts += [_child(trajectory, below, its_first) for below, its_first in trajectory.called_by(first + index)]
    answer = "none" if child.answer is None else literal(child.answer)
    return "\n\n".join([*parts, f"**Answer:** {answer}", "</details>"])


def _call(call: ToolCall) -> dict[str, Any]:
    """Return a tool call in full, so that it can be replayed: a record is JSON and bounded."""
    return {
        key: _UNPRINTABLE.sub("\ufffd", value) if isinstance(value, str) else value for key, value in call.model_dump().items()
    }


def _output(output: Output, count: int) -> NotebookNode:
    text = printable(output.text)
    if output.kind == "stream":
        return new_output("stream", name="stdout", text=text)
    if output.kind == "error":
        name, _, value = text.partition(": ")
        return new_output("error", ename=name, evalue=value, traceback=text.split("\n"))
    data = {"text/plain": text}
    if output.image and (kind := picture_kind(output.image)):
        data[kind] = base64.b64encode(output.image).decode()
    if output.kind == "result":
        return new_output("execute_result", data=data, execution_count=count)
    return new_output("display_data", data=data)


def _ending(trajectory: Trajectory) -> str:
    answer = literal(trajectory.answer) if trajectory.answer is not None else f"none: {literal(trajectory.status)}"
    failure = f"\n\n**Failure:** {literal(trajectory.failure)}" if trajectory.failure else ""
    return f"# Answer\n\n{answer}{failure}"
