"""Episodes a second of inspect-ai: `inspect_episodes.py EPISODES AT_ONCE`, run by a Python that has inspect-ai.

The script of agent_overhead.py in inspect-ai's own words: its `python` tool in its `local` sandbox, which starts a process for
each cell and walls nothing in; no cell sees the variables of another. The tool is a function in the cell, which costs it nothing.
The model is its mock, whose answers name their usage, since its tokenizer would be fetched from the network.
"""

import sys
import tempfile
import time

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, GenerateConfig, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import ToolChoice, ToolInfo, python

MODEL, PASSAGE = "mockllm/model", "Tilo was born in Keldra."
CELLS = [f"def search(query): return {PASSAGE!r}\nfound = search('Tilo born')\nprint({step}, found)" for step in (1, 2, 3)]


def script(messages: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig) -> ModelOutput:
    step = sum(isinstance(message, ChatMessageAssistant) for message in messages)
    if step < len(CELLS):
        output = ModelOutput.for_tool_call(MODEL, "python", {"code": CELLS[step]})
    else:
        output = ModelOutput.from_content(MODEL, "Keldra")
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def rate(episodes: int, at_once: int, logs: str) -> float:
    samples = [Sample(input="Where was Tilo born?") for _ in range(episodes)]
    task = Task(dataset=samples, solver=[use_tools(python()), generate()], sandbox="local")
    model = get_model(MODEL, custom_outputs=script)
    began = time.perf_counter()
    (log,) = eval(task, model=model, display="none", log_dir=logs, max_samples=at_once)
    seconds = time.perf_counter() - began
    if log.status != "success":
        raise RuntimeError(f"inspect-ai: {log.error}"[:500])
    for sample in log.samples or []:
        said = [message.text for message in sample.messages if message.role == "tool"]
        if len(said) != len(CELLS) or not all(PASSAGE in each for each in said):
            raise RuntimeError(f"a cell said {said}")
    return episodes / seconds


def main() -> None:
    episodes, at_once = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as logs:
        rate(1, 1, logs)
        print(rate(episodes, at_once, logs))


if __name__ == "__main__":
    main()
