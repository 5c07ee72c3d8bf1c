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
_ANSWER = re.compile(r"^[ \t*_#>]*(?:[\w']+[ \t]+){0,3}answer[ \t*_]*(?:is[ \t*_]*)?:[\s*_]*(.+)$", re.IGNORECASE | re.MULTILINE)
_BRACES = re.compile(r"\\f?boxed\s*\{|\\.|[{}]", re.DOTALL)
_EMPHASIS_ENDS = re.compile(r"(?<![*_])[*_]+\.?\s*$")
_AROUND = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"))


def read_answer(text: str) -> str | None:
    """What stands after the last `Answer:` with at most three words before it, in the last `\\boxed{…}`, or else all of the text.

    A box in that line, and emphasis or marks of mathematics around the answer, are taken away. What stands before the end of
    thinking does not count. None if nothing is left.
    """
    said = text.rpartition(_THOUGHT)[2].strip()
    lines = _ANSWER.findall(said)
    told = lines[-1] if lines else said
    boxed = _boxed(told)
    if boxed is None and not lines:
        return said or None
    return _bare(told if boxed is None else boxed) or None


def _boxed(text: str) -> str | None:
    """What the last box holds, whatever braces are in it; of boxes in one another the outermost."""
    opened: list[tuple[bool, int]] = []
    found = None
    for mark in _BRACES.finditer(text):
        if mark[0].endswith("{") and mark[0] != r"\{":
            opened.append((mark[0] != "{", mark.end()))
        elif mark[0] == "}" and opened:
            box, start = opened.pop()
            found = text[start : mark.start()] if box else found
    return found


def _bare(answer: str) -> str:
    """The answer without what sets it apart from other text."""
    bare = _EMPHASIS_ENDS.sub("", answer.strip().lstrip("*_ "))
    within = bare.removesuffix(".")
    for opens, closes in _AROUND:
        inner = within.removeprefix(opens).removesuffix(closes)
        if inner and len(inner) == len(within) - len(opens) - len(closes) and opens not in inner and closes not in inner:
            bare = inner
            break
    return bare if bare == answer else _bare(bare)


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
