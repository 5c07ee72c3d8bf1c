"""The agent's interface to a policy."""

from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from nbrl.agent.messages import Prompt


class Sampling(BaseModel):
    """The sampling of actions. The engine's log-probs are those of the sampling distribution only at temperature 1, top_p 1."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    temperature: float = Field(1.0, ge=0, description="0 always takes the likeliest token")
    top_p: float = Field(
        1.0, gt=0, le=1, description="sample among the likeliest tokens that together have this probability; 1 samples among all"
    )


@dataclass(frozen=True)
class Generation:
    """A sampled action: ids exactly as the engine returned them, one log-prob per id.

    `text` is set by policies that know no ids; each id is then `UNKNOWN` of nbrl.agent.tokens.
    """

    token_ids: list[int]
    logprobs: list[float]
    weights_version: str
    finish: Literal["stop", "length"]
    text: str | None = None


class Policy(Protocol):
    """Samples one action after a prompt. Raises PolicyError for infrastructure faults only."""

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation: ...
