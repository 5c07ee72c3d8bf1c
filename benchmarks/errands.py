"""What do agents at once save? Plays questions of three independent look-ups with and without children, in real kernels.

Usage: python benchmarks/errands.py [--questions 12] [--delay 1.0]

Both ways are scripted and right, so that their seconds and tokens are those of the ways alone: one agent looks up three things
in a cell, two cells and an answer; or it sends three agents at once, each of which looks up twice. A policy answers after
`--delay` seconds, as a model of some size does. `slow` ways look up by a search that takes half a second, as on the web.

One JSON line with the mean seconds and sampled tokens of a trajectory by way.
"""

import argparse
import asyncio
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any

from hardware import cpu_machine

from nbrl.agent.episode import Episode, Task
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings, ChildSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import ToolSettings
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.environments.worlds.errands import Errands
from nbrl.tasks.own import Question
from nbrl.tasks.rollout.children import ChildKernels, kernels_at_once
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.warmstart.demonstrators.play import DemonstratedQuestion, DemonstrationAgent, Move, PlayedTasks

AGENT = AgentSettings(context_tokens=4000, action_tokens=400, children=ChildSettings(seconds=600))
POLICY = Path(__file__).resolve().parent.parent / "infra/policies/tiny"
SEARCH_S = 0.5


class Delayed:
    """A policy that takes its time."""

    def __init__(self, policy: PlayedTasks, delay: float) -> None:
        self._policy, self._delay = policy, delay

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        await asyncio.sleep(self._delay)
        return await self._policy.generate(prompt, max_tokens, seed)


async def played(
    notebooks: Notebooks, question: Question, moves: list[Move], stage: DemonstrationAgent, delay: float, slow: bool
) -> tuple[float, int]:
    """Return the seconds and the sampled tokens of one trajectory."""
    tasks = Errands()

    def child(text: str) -> list[Move]:
        steps = tasks.demonstrate_child(text, question, random.Random(0), True)
        return [Move(think, _slowed(code, slow)) for think, code in steps]

    asked = DemonstratedQuestion("q", question.text, "", child=child)
    steps = [Move(move.think, _slowed(move.code, slow)) for move in moves]
    policy = Delayed(PlayedTasks(asked, steps, stage), delay)
    task = Task("q", "q", 0, question.text, "", 0)
    children = ChildKernels(notebooks, AGENT, 3).of(task, policy, stage.tokenizer, AGENT)
    began = time.monotonic()
    async with notebooks.new("", "", children=children) as (kernel, toolbox):
        wired = SandboxedKernel(kernel, children)
        made = await Episode(task, policy, wired, toolbox, stage.tokenizer, AGENT, children=children).run()
    right = made.answer == ", ".join(each["answer"] for each in question.reference)
    if not right:
        raise RuntimeError(f"a scripted way went wrong: {made.status} {made.answer!r}")
    return time.monotonic() - began, sum(len(node.token_ids) for node in made.sampled())


def _slowed(code: str, slow: bool) -> str:
    """Return a cell whose look-ups take as long as they would on the web."""
    return code.replace("print(search", f"__import__('time').sleep({SEARCH_S})\nprint(search") if slow else code


async def measure(count: int, delay: float) -> dict[str, Any]:
    tasks, stage = Errands(train=count), DemonstrationAgent(AGENT, ChatTokenizer.load(POLICY, AGENT))
    equipment = {"": Equipment(Corpus.in_memory(list(tasks.corpus())))}
    found: dict[str, list[tuple[float, int]]] = {}
    async with Notebooks.open(ToolSettings(), equipment, SandboxSettings(max_live=kernels_at_once(AGENT, 3))) as notebooks:
        for number, question in enumerate(tasks.questions("train")):
            rng = random.Random(number)
            alone = tasks.demonstrate(question, rng, False)
            while len(alone) < 3:  # it stopped halfway
                alone = tasks.demonstrate(question, rng, False)
            for name, moves in (("alone", alone), ("children", tasks.demonstrate(question, rng, True))):
                for slow in (False, True):
                    way = [Move(think, code) for think, code in moves]
                    done = await played(notebooks, question, way, stage, delay, slow)
                    found.setdefault(f"{name}{', slow' if slow else ''}", []).append(done)
    means = {name: [round(statistics.mean(each), 2) for each in zip(*done, strict=True)] for name, done in found.items()}
    return {"questions": count, "delay_s": delay, "seconds_and_tokens": means, "hardware": cpu_machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=int, default=12)
    parser.add_argument("--delay", type=float, default=1.0)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.questions, arguments.delay))))


if __name__ == "__main__":
    main()
