"""A double of a rater and of a policy behind the OpenAI chat API. What it replies depends on what it is asked alone."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbrl.tasks.prepare.rate import AGAIN
from tests.chat_server import Reply, Server, running, said

GARBLED = ("Sure! It is objective.", '{"objectivity": 1}', '{"objectivity": 2, "temporal_stability": 0}', "")


class Rater(Server):
    """Rates by words in the question: `opinion` is subjective, `today` unstable, `garbled` gets a first reply that
    cannot be read, `hopeless` only such, and `broken` status 500 the first time.

    As a policy it gives the answers `answers`, by question, to the first `knows` requests of a question.
    """

    def __init__(self, answers: dict[str, str], knows: int) -> None:
        super().__init__()
        self.answers, self.knows = answers, knows
        self.asked: list[str] = []  # what was answered with status 200, by what was asked
        self.begun = Counter[str]()
        self.said: list[str] = []
        self.status = 200

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def reply(self, body: dict[str, Any]) -> Reply:
        name = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        asked = body["messages"][-1]["content"]
        with self.lock:
            self.begun[name] += 1
            self.said.append(asked)
            number = self.said.count(asked)
            first = self.begun[name] == 1
            if self.status != 200 or ("broken" in asked and first):
                return Reply(status=self.status if self.status != 200 else 500)
            self.asked.append(name)
        if "You rate questions" in body["messages"][0]["content"]:
            return said(self._verdict(asked))
        return said(f"I think.\nAnswer: {self.answers[asked] if number <= self.knows else 'no idea'}")

    def _verdict(self, asked: str) -> str:
        if "hopeless" in asked or ("garbled" in asked and AGAIN not in asked):
            return GARBLED[len(asked) % len(GARBLED)]
        verdict = {"objectivity": -1 if "opinion" in asked else 1, "temporal_stability": -1 if "today" in asked else 1}
        return f"```json\n{json.dumps(verdict)}\n```" if "fenced" in asked else json.dumps(verdict)


@contextmanager
def rating(answers: dict[str, str] | None = None, knows: int = 0) -> Iterator[Rater]:
    with running(Rater(answers or {}, knows)) as server:
        yield server
