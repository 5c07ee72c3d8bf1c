"""A saved trajectory, written as JSON and read again, from that or from the notebook of `write`.

A notebook holds all of it but the token ids. Cells may have been edited since; what is in it now is read.
"""

import base64
import json
from typing import Any

import nbformat
from nbformat import NotebookNode
from pydantic import ValidationError

from nbrl.agent.errors import RecordingError
from nbrl.agent.kernel import CellResult
from nbrl.agent.notebook.write import TEXT_CHARS, printable
from nbrl.agent.observation import observe
from nbrl.agent.pictures import PICTURES
from nbrl.agent.text import storable
from nbrl.agent.tokens.tokenizer import UNKNOWN
from nbrl.agent.trajectory import Output, Step, ToolCall, Trajectory


def read(data: bytes) -> Trajectory:
    """Read a trajectory. Raises RecordingError if the data is neither format or has no trajectory."""
    try:
        content = json.loads(data)
        # JSON can hold halves of surrogate pairs, which no kernel takes.
        data = storable(json.dumps(content, ensure_ascii=False)).encode()
        trajectory = (
            _of_notebook(nbformat.reads(data.decode(), 4)) if "cells" in content else Trajectory.model_validate_json(data)
        )
        for step in trajectory.steps:
            _check(step.tool_calls)
    except (
        ValueError,
        ValidationError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        nbformat.ValidationError,
    ) as error:
        raise RecordingError(f"it is neither a notebook that nbrl saved nor a trajectory as JSON: {_first(error)}") from error
    return trajectory


def as_json(trajectory: Trajectory) -> str:
    """Return the trajectory for `read`: bytes in base64, halves of surrogate pairs as escapes, no token ids that are unknown."""
    content = trajectory.model_dump()
    for node in content["nodes"]:
        if UNKNOWN in node["token_ids"]:
            del node["token_ids"], node["logprobs"]
    return json.dumps(content, default=lambda data: base64.urlsafe_b64encode(data).decode())


def changed(recorded: Trajectory, again: Trajectory) -> list[int]:
    """Return the steps, from 0, whose result differs from the recording, or that were not taken."""
    pairs = list(zip(recorded.steps, again.steps, strict=False))
    differ = [index for index, (before, after) in enumerate(pairs) if _seen(before) != _seen(after)]
    return differ + list(range(len(pairs), len(recorded.steps)))


def _seen(step: Step) -> tuple[str, str, str]:
    """Return what is compared of a step: of a long observation the part that a notebook keeps from its start."""
    return step.kind, step.malformed, printable(step.observation).strip()[: TEXT_CHARS // 2]


def _of_notebook(found: NotebookNode) -> Trajectory:
    steps = [_step(cell) for cell in found.cells if "step" in cell.metadata.get("nbrl", {})]
    facts = {name: value for name, value in found.metadata["nbrl"].items() if name != "rewards"}
    return Trajectory.model_validate({**facts, "nodes": [], "steps": steps})


def _step(cell: NotebookNode) -> Step:
    facts = cell.metadata["nbrl"]
    fields = {name: facts[name] for name in Step.model_fields if name in facts}
    step = Step.model_validate({**fields, "notepad": json.dumps(facts["notepad"])})
    if cell.cell_type == "code":
        step.code = cell.source
        # Notices of the notebook's own are on stderr; `observe` says the same in its words.
        step.outputs = [_output(output) for output in cell.outputs if output.get("name") != "stderr"]
        status = "ok" if step.cell_status == "none" else step.cell_status
        step.observation = observe(CellResult(status, step.outputs))
    return step


def _output(output: NotebookNode) -> Output:
    match output.output_type:
        case "stream":
            return Output(kind="stream", text=output.text)
        case "error":
            return Output(kind="error", text="\n".join(output.traceback))
    image = base64.b64decode(next((output.data[kind] for kind in PICTURES if kind in output.data), ""))
    kind = "result" if output.output_type == "execute_result" else "display"
    return Output.model_validate({"kind": kind, "text": output.data.get("text/plain", ""), "image": image})


def _check(calls: list[ToolCall]) -> None:
    """Raises ValueError for a call that was recorded completely but is not JSON."""
    for call in calls:
        if call.complete:
            arguments: Any = json.loads(call.arguments)
            json.loads(call.result)
            if not isinstance(arguments, dict):
                raise ValueError(f"the arguments of a call of {call.name} are no object")


def _first(error: Exception) -> str:
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0][:200]
