"""One question, one action, no notebook: what a model answers at once, to compare the notebook agent with."""

import asyncio
import re
import time
from collections import deque

from nbrl.agent.episode import Task
from nbrl.agent.errors import AgentError
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.trajectory import ROOT, Node, Status, Step, Trajectory

PROMPT = "Answer the question. You may think first. End with one line: Answer: the answer alone, as short as possible."
_THOUGHT = "</think>"
_BEFORE = r"(?:[\w']+[ \t]+){0,3}answer"
_BEHIND = r"[ \t*_]*"
# A line, with a colon, or a heading above the answer.
_ANSWER = re.compile(
    rf"^(?:(?P<mark>[ \t*_#>•-]*(?:\d+[.)][ \t*_]*)?){_BEFORE}(?P<ended>{_BEHIND}(?:is{_BEHIND})?)[:：]\s*(?P<rest>.*)"
    rf"|[ \t]*(?:#+|\*\*)[ \t*_]*{_BEFORE}{_BEHIND}\n\s*(?P<below>.+))$",
    re.IGNORECASE | re.MULTILINE,
)
_BRACES = re.compile(r"\\(?:boxed|fbox)\s*\{|\\.|[{}]", re.DOTALL)
_AROUND = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("`", "`"), ("***", "***"), ("**", "**"), ("*", "*"))
_OPENS = re.compile(r"([*_]{1,3})(?:\s+|(?=[^\s*_]))")
_CLOSES = re.compile(r"([*_]{1,3})\.?$")


def read_answer(text: str) -> str | None:
    """Return what follows the last `Answer:` with at most three words before it, what the last `\\boxed{…}` holds, or else all of
    the text.

    A box in that line, and emphasis or marks of mathematics around the answer, are taken away. What comes before the end of
    thinking does not count. None if nothing is left.
    """
    spoken = text.rpartition(_THOUGHT)[2].strip()
    lines = deque(_ANSWER.finditer(spoken), maxlen=2)  # the text may end behind a last, empty one
    line = next((line for line in reversed(lines) if line["rest"] or line["below"]), None)
    if lines and not line:
        return None
    answer = _within(line) if line else spoken
    boxed = _boxed(answer)
    if boxed is None and not line:
        return spoken or None
    return _bare(answer if boxed is None else boxed) or None


def _within(line: re.Match[str]) -> str:
    """Return the answer in a line, without the end of an emphasis that began before the word `answer`."""
    answer, marks = (line["rest"] or line["below"]).strip(), set("*_") & (set(line["mark"] or "") - set(line["ended"] or ""))
    if marks and (begins := _OPENS.match(answer)) and begins[1][0] in marks:
        return answer[begins.end() :]
    ends = _CLOSES.search(answer)
    return answer[: ends.start()].strip() if ends and ends[1][0] in marks and answer.count(ends[1]) % 2 else answer


def _boxed(text: str) -> str | None:
    """Return what the last box holds, whatever braces are in it; of boxes in one another the outermost."""
    opened: list[tuple[bool, int]] = []
    last: tuple[int, int] | None = None
    for mark in _BRACES.finditer(text):
        if mark[0].endswith("{") and mark[0] != r"\{":
            opened.append((mark[0] != "{", mark.end()))
        elif mark[0] == "}" and opened:
            box, start = opened.pop()
            last = (start, mark.start()) if box else last
    return text[slice(*last)] if last else None


def _bare(answer: str) -> str:
    """Return the answer without the marks around it."""
    bare = answer.strip()
    if not bare.strip("*_. "):
        return ""
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
