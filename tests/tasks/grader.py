"""A double of a grader behind the OpenAI chat API. What it replies depends on what it is asked alone."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbrl.tasks.reward.judge.prompt import AGAIN
from tests.chat_server import Reply, Server, running, said

LINES = [re.compile(rf"^{name}: (.*)$", re.MULTILINE) for name in ("question", "references", "answer")]


class Grader(Server):
    """An answer that equals a reference is right, `no idea` is no attempt, all else is wrong.

    Words in question or answer do more: with `twice` the first reply has several grades, with `never` each has, with `long` it is
    cut, and with `refused` its status is 400.
    """

    def __init__(self) -> None:
        super().__init__()
        self.broken = 0  # so many requests are answered with status 503 first

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    @property
    def answers(self) -> list[str]:
        """The answers of which grades were asked for, sorted."""
        said = (LINES[2].findall(body["messages"][-1]["content"]) for body in self.bodies)
        return sorted(json.loads(found[0]) for found in said if found)

    def reply(self, body: dict[str, Any]) -> Reply:
        asked = body["messages"][-1]["content"]
        with self.lock:
            self.broken -= 1
            if self.broken >= 0:
                return Reply(status=503)
        if not LINES[2].search(asked):
            return said("Yes.")
        question, references, answer = (json.loads(found[0]) for found in (each.findall(asked) for each in LINES))
        words = f"{question} {answer}".split()
        if "refused" in words:
            return Reply(status=400)
        if "long" in words:
            return said("GRADE: CORRECT", "length")
        if "never" in words or ("twice" in words and AGAIN not in asked):
            return said("GRADE: INCORRECT\nGRADE: CORRECT")
        grade = "CORRECT" if answer in references else "NOT_ATTEMPTED" if answer == "no idea" else "INCORRECT"
        return said(f"I compared them.\nGRADE: {grade}")


@contextmanager
def grading() -> Iterator[Grader]:
    with running(Grader()) as server:
        yield server
