"""Settings of a model behind a server, without what asks it."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from nbrl.agent.text import check_address


class ChatSettings(BaseModel):
    """A model behind the OpenAI chat API."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    endpoint: str = Field(description="the part before /chat/completions, such as https://host/v1")
    model: str = Field(min_length=1)
    sees_images: bool = Field(False, description="send pictures; else the model reads only their sizes")
    seeded: bool = Field(False, description="send each request's seed; not every server takes one")

    @field_validator("endpoint")
    @classmethod
    def _address(cls, value: str) -> str:
        check_address(value)
        return value.rstrip("/")
