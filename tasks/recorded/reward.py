"""The reward of a session, as an agent elsewhere gives it."""

import hashlib
import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.agent.recorder.chat_api import RequestError, read_object
from nbrl.agent.text import storable
from nbrl.tasks.errors import fault_in_words

METRIC = r"^[A-Za-z0-9_-]{1,40}$"


class SessionReward(BaseModel):
    """Body of `POST /sessions/ID/reward`. A reward of 1 is a success, unless `success` says otherwise.

    Sessions that name the same `group` are attempts at the same task, which are compared with each other. `right` is what answers
    the `question` of the session, for a server that keeps questions; without one it is what the user said.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    reward: float = Field(ge=0, le=1, allow_inf_nan=False)
    success: bool | None = None
    group: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,80}$")
    answer: str | None = Field(None, max_length=100_000)
    question: str = Field("", max_length=100_000)
    right: list[Annotated[str, Field(min_length=1, max_length=10_000)]] = Field([], max_length=20)
    metrics: dict[Annotated[str, Field(pattern=METRIC)], Annotated[float, Field(allow_inf_nan=False)]] = Field({}, max_length=20)

    @classmethod
    def read(cls, body: bytes) -> "SessionReward":
        """Read the body of a request. Raises RequestError."""
        given = read_object(body)
        try:
            read = cls.model_validate(given)
        except ValidationError as error:
            raise RequestError(f"the reward cannot be read: {fault_in_words(error)}"[:400]) from error
        return read if read.answer is None else read.model_copy(update={"answer": storable(read.answer)})

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def succeeded(self) -> bool:
        return self.reward >= 1 if self.success is None else self.success

    @property
    def for_keeping(self) -> bool:
        """Return whether it says what only a server that keeps questions needs."""
        return bool(self.question or self.right)

    def right_answers(self) -> list[str]:
        """Return what is known to answer the question: what the reward says, or else the answer of a success."""
        known = self.right or ([self.answer] if self.succeeded and self.answer else [])
        return [text for text in map(storable, known) if text.strip()]

    def outcome(self) -> str:
        """Return the JSON of the outcome that rewards are made of: see reward/rules/outcome.py."""
        return json.dumps({"success": self.succeeded, "reward": self.reward, "metrics": self.metrics})
