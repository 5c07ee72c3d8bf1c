"""Sessions of agents that run elsewhere: `nbrl serve RUN --record` answers and records them."""

from typing import Literal

from pydantic import Field, model_validator

from nbrl.infra.closed import FREE
from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.questions import table_of


class RecordedEnvironment(Environment):
    """What agents elsewhere did with the run's policy. It has no questions: a batch is the next sessions that were rewarded."""

    kind: Literal["recorded"] = Field(description="sessions of agents that run elsewhere, recorded by nbrl serve RUN --record")
    tool_parser: str | None = Field(
        None, description="the engine's parser for calls of tools that agents send with their requests, such as qwen25 or llama3"
    )
    wait_s: float | None = Field(
        None,
        gt=0,
        description="seconds within which the sessions of a batch must come, or the run stops; any time when not set",
        json_schema_extra=FREE,
    )

    @model_validator(mode="after")
    def _acts(self) -> "RecordedEnvironment":
        if idle := [name for name in ("tools", "prompt") if getattr(self, name)]:
            raise ValueError(f"{idle[0]} has no effect for the kind recorded, whose agents bring their own; leave it out")
        if not self.weight:
            raise ValueError("the kind recorded has no effect with weight 0, for it cannot be evaluated; leave it out")
        return self

    def load(self, key: str) -> Tables:
        return Tables(table_of([]), table_of([]))
