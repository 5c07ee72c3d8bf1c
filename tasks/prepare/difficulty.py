"""difficulty: the share of a policy's answers to a question that are right, by the question's own rule."""

import asyncio
import re

import pyarrow as pa

from nbrl.agent.messages import Message
from nbrl.tasks.prepare.endpoint import Asker, NoReplyError, each
from nbrl.tasks.prepare.rate import UNRATED, Unrated
from nbrl.tasks.prepare.rows import Map, blocks, marked
from nbrl.tasks.prepare.settings import DifficultySettings
from nbrl.tasks.reward.rules.rule import judge
from nbrl.tasks.services.progress import Progress

STAGE = "difficulty"
INSTRUCTIONS = (
    "Answer the question. Think as long as you need to, then end with one line `Answer: ` and the bare answer after it."
)
_ANSWER = re.compile(r"^[\s*#>`]*(?:final )?answer[\s*]*:[\s*]*(.*?)[\s*`]*$", re.IGNORECASE | re.MULTILINE)
ANSWER_CHARS = 1000


def read_answer(reply: str) -> str | None:
    """What stands after the last `Answer:` at the start of a line; None if nothing does. A policy without an answer is wrong."""
    found = _ANSWER.findall(reply)
    return found[-1][:ANSWER_CHARS] if found and found[-1] else None


def judge_table(samples: pa.Table) -> pa.Table:
    """Whether each sample's answer is right, as the column `exact`, 0 or 1. For a Ray task."""
    return pa.table({"exact": pa.array([judged.exact for judged in judge(samples.to_pylist())], pa.float64())})


async def difficulty(questions: pa.Table, settings: DifficultySettings, asker: Asker, progress: Progress, map_: Map) -> pa.Table:
    """The questions with the column `pass_rate`, marked.

    A pass rate is a mean over exactly `samples` answers: a question of which a request failed is unrated and dropped, and an
    answer that was not given counts as wrong. Raises PrepareError if too many are unrated, or the server fails.
    """
    asked = questions["question"].to_pylist()
    answers: list[list[str | None]] = [[] for _ in asked]
    unrated = Unrated(STAGE, len(asked), settings)

    async def one(place: int) -> None:
        messages = [Message("system", INSTRUCTIONS), Message("user", asked[place])]
        try:
            answers[place] = [read_answer(await asker.reply(messages, number)) for number in range(settings.samples)]
        except NoReplyError as error:
            unrated.add(place, str(error))

    await each(range(len(asked)), settings.concurrency, one, lambda done: progress.advanced(STAGE, done, len(asked)))
    rates = await asyncio.to_thread(_pass_rates, questions, answers, map_)
    questions = questions.append_column("pass_rate", pa.array(rates, pa.float64()))
    return marked(
        questions, [(UNRATED, unrated.reasons[place]) if place in unrated.reasons else None for place in range(len(asked))]
    )


def _pass_rates(questions: pa.Table, answers: list[list[str | None]], map_: Map) -> list[float | None]:
    places = [place for place, given in enumerate(answers) for _ in given]
    samples = questions.select(["answers", "rule"]).take(pa.array(places, pa.int64()))
    given = [answer for each in answers for answer in each]
    samples = samples.append_column("answer", pa.array(given, pa.string()))
    samples = samples.append_column("reference", pa.array([""] * len(given), pa.string()))
    right = [0.0] * len(answers)
    for place, exact in zip(places, map_(blocks(samples), judge_table, ())["exact"].to_pylist(), strict=True):
        right[place] += exact
    return [total / len(each) if each else None for total, each in zip(right, answers, strict=True)]
