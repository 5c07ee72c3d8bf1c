"""Asks the grader for grades, several at once."""

import asyncio
from collections.abc import Callable, Collection

from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.http.client import model_client, usable_key
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.chat import ChatPolicy, ChatSettings
from nbrl.agent.policy import Sampling
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import RewardError
from nbrl.tasks.reward.judge.grades import keep
from nbrl.tasks.reward.judge.prompt import JudgedAnswer, messages, read_grade
from nbrl.tasks.reward.judge.settings import JudgeSettings
from nbrl.tasks.reward.rules.rule import INCORRECT

SEED = 0
SHOWN_CHARS, FAULT_CHARS = 80, 300
NEUTRAL = "I do not know."


class UngradedError(Exception):
    """The grader gave this one answer no grade; the message says why."""


class RepelledError(UngradedError):
    """The grader refused the prompt, or gave a reply that is no grade: the answer may be why."""


async def ask(
    asked: Collection[JudgedAnswer],
    settings: JudgeSettings,
    storage: Storage,
    say: Callable[[str], None],
    failed: Callable[[JudgedAnswer, str], None],
) -> dict[JudgedAnswer, str]:
    """Return the grades of these answers, each kept as soon as it is there.

    An answer that the grader refuses or gives no readable grade is incorrect if it grades other answers to the question, NEUTRAL
    and a right one: else an answer that confuses the grader would leave the score.
    `failed` hears of each answer that gets none, with the reason; what it raises ends all requests. Raises RewardError if the
    key is not set.
    """
    try:
        key = usable_key(settings.key)
    except ValueError as error:
        raise RewardError(f"reward.judge.key: {error}") from error
    grades: dict[JudgedAnswer, str] = {}
    left, heard = iter(asked), set[str]()

    def tell(text: str) -> None:
        """Each trouble of the server once, for many requests have the same."""
        trouble = text.partition(";")[0]
        if trouble not in heard:
            heard.add(trouble)
            say(text)

    async with model_client(settings.base_url, key, settings.concurrency, settings.timeout_s) as client:
        chat = ChatSettings(endpoint=settings.base_url, model=settings.name, seeded=True)
        hint = f"set {settings.key or 'reward.judge.key'} to a key that the server accepts"
        policy = ChatPolicy(client, chat, Sampling(temperature=0), tell=tell, key_hint=hint, firm=False)

        async def worker() -> None:
            for each in left:
                try:
                    grade, reply = await _graded(policy, each, settings)
                except UngradedError as error:
                    failed(each, " ".join(str(error).split())[:FAULT_CHARS])
                    continue
                grades[each] = await asyncio.to_thread(keep, storage, each, settings, grade, reply)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(settings.concurrency, len(asked))):
                    group.create_task(worker())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
    return grades


async def _graded(policy: ChatPolicy, asked: JudgedAnswer, settings: JudgeSettings) -> tuple[str, str]:
    """Return a grade with the reply that gave it, or with why the answer is incorrect without one. Raises UngradedError."""
    try:
        return await _one(policy, asked, settings)
    except RepelledError as error:
        others = [asked._replace(answer=answer) for answer in (NEUTRAL, *asked.references[:1])]
        if asked in others:
            raise
        try:
            for other in others:
                await _one(policy, other, settings)
        except UngradedError:
            raise error from None  # another answer would have met it too
        return INCORRECT, str(error)


async def _one(policy: ChatPolicy, asked: JudgedAnswer, settings: JudgeSettings) -> tuple[str, str]:
    """Return a grade with the reply that gave it. Raises UngradedError."""
    text = ""
    for attempt in range(settings.attempts):
        prompt = Prompt([], messages(asked, settings.rubric, again=attempt > 0))
        try:
            reply = await policy.generate(prompt, settings.max_tokens, SEED)
        except RefusedError as error:
            raise RepelledError(f"the judge failed: {error}") from error
        except PolicyError as error:
            raise UngradedError(f"the judge failed: {error}") from error
        text = reply.text or ""
        grade = read_grade(text) if reply.finish == "stop" else None
        if grade is not None:
            return grade, text
    cut = "" if reply.finish == "stop" else f" (cut at reward.judge.max_tokens {settings.max_tokens})"
    shown = text.strip()[-SHOWN_CHARS:]
    raise RepelledError(f"the judge gave no single grade in {settings.attempts} replies; the last ends{cut} with {shown!r}")
