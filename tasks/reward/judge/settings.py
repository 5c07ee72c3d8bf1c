"""Models that grade: the judge of answers to questions with the rule `judge`, and the settings it shares with other graders."""

from pydantic import Field, field_validator

from nbrl.agent.text import check_address
from nbrl.infra.closed import FREE, FiniteModel

PLACEHOLDERS = ("{question}", "{references}", "{answer}")
NEEDED = ["id", "rule", "question", "answers", "answer"]  # columns of its prompt
GRADES = ("grade", "ungraded")  # what it said, and why it said nothing


class GraderSettings(FiniteModel):
    """A model behind an OpenAI-compatible server that grades."""

    base_url: str = Field(description="the part before /chat/completions, such as https://host/v1", json_schema_extra=FREE)
    name: str = Field(min_length=1, description="the server's name of the model; best one that names its version")
    key: str | None = Field(
        "OPENAI_API_KEY",
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the server's key; null: none is sent",
        json_schema_extra=FREE,
    )
    max_tokens: int = Field(1024, ge=1, description="maximum tokens of a reply, thinking included")
    timeout_s: float = Field(120.0, gt=0, description="maximum seconds of one reply", json_schema_extra=FREE)
    concurrency: int = Field(16, ge=1, le=1024, description="requests at once", json_schema_extra=FREE)
    attempts: int = Field(
        2, ge=1, le=10, description="replies asked for, at most, until one can be read as a grade", json_schema_extra=FREE
    )

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        check_address(value)
        return value.rstrip("/")


class JudgeSettings(GraderSettings):
    """A model behind an OpenAI-compatible server that grades answers; for questions with the rule `judge`."""

    rubric: str | None = Field(
        None,
        max_length=20_000,
        description="text that says which answers get which grade; {question}, {references} and {answer} in it are replaced by "
        "these as JSON; when not set, the rubric of nbrl",
    )

    @field_validator("rubric")
    @classmethod
    def _complete(cls, value: str | None) -> str | None:
        lacking = [name for name in PLACEHOLDERS if value is not None and name not in value]
        if lacking:
            raise ValueError(f"it lacks {', '.join(lacking)}; write each where the grader shall read it")
        return value
