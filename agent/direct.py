"""One question, one action, no notebook: what a model answers at once, to compare the notebook agent with."""

import asyncio
import re
import time

from nbrl.agent.episode import Task
from nbrl.agent.errors import AgentError
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.trajectory import ROOT, Node, Status, Step, Trajectory

PROMPT = "Answer the question. You may think first. End with one line: Answer: the answer alone, as short as possible."
_THOUGHT = "</think>"
_ANSWER = re.compile(r"^[ \t*_#>]*answer[ \t*_]*:[\s*_]*(.+)$", re.IGNORECASE | re.MULTILINE)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def read_answer(text: str) -> str | None:
    """What stands after the last `Answer:` that begins a line, in the last `\\boxed{…}`, or else all of the text.

    What stands before the end of thinking does not count. None if nothing is left.
    """
    said = text.rpartition(_THOUGHT)[2].strip()
    for pattern in (_ANSWER, _BOXED):
        if found := pattern.findall(said):
            return str(found[-1]).strip().rstrip("*_ ") or None
    return said or None


class DirectEpisode:
    """One action that is the answer; single use. `run` always returns a trajectory, whose one thought is all that was said."""

    def __init__(self, task: Task, policy: Policy, tokenizer: Renderer, settings: AgentSettings) -> None:
        self._task, self._policy, self._tokenizer, self._settings = task, policy, tokenizer, settings
        self._nodes: list[Node] = []
        self._steps: list[Step] = []
        self._answer: str | None = None

    async def run(self) -> Trajectory:
        started_at, clock = time.time(), time.monotonic()
        status, failure = Status.TIMEOUT, ""
        try:
            async with asyncio.timeout(self._settings.deadline_s):
                status = await self._ask()
        except TimeoutError:
            pass
        except AgentError as error:
            status, failure = Status.FAILED, str(error)
        seconds = time.monotonic() - clock
        return self._task.ended(status, failure, self._answer, self._nodes, self._steps, started_at, seconds)

    async def _ask(self) -> Status:
        task, tokenizer = self._task, self._tokenizer
        system = "\n".join(part for part in (PROMPT, task.instruction.strip()) if part)
        messages = [Message("system", system), Message("user", task.question, task.images)]
        first = tokenizer.message("system", system)
        second = tokenizer.message("user", task.question, after="system")
        second += tokenizer.pictures(task.images) + tokenizer.generation_prompt()
        room = self._settings.context_tokens - len(first) - len(second)
        if room < 1:
            return Status.TOKEN_LIMIT
        clock = time.monotonic()
        generation = await self._policy.generate(Prompt([first, second], messages), room, task.seed)
        self._nodes = [
            Node(parent=ROOT, kind="system", step=0, token_ids=first),
            Node(parent=0, kind="task", step=0, token_ids=second),
            Node(
                parent=1,
                kind="sampled",
                step=0,
                token_ids=generation.token_ids,
                logprobs=generation.logprobs,
                weights_version=generation.weights_version,
            ),
        ]
        text = self._text(generation)
        self._steps = [Step(think=text, policy_seconds=time.monotonic() - clock)]
        if generation.finish == "length":
            return Status.TOKEN_LIMIT
        self._answer = read_answer(text)
        return Status.NO_ANSWER if self._answer is None else Status.ANSWERED

    def _text(self, generation: Generation) -> str:
        return generation.text if generation.text is not None else self._tokenizer.decode(generation.token_ids)
