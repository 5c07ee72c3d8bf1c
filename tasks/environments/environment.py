"""An environment: questions to train and to evaluate on, each with its scorer; a corpus, tools, a line for the prompt."""

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
from pydantic import Field

from nbrl.agent.tools.sessions import SessionSource
from nbrl.infra.closed import ClosedModel
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, table_of
from nbrl.tasks.environments.world.world import ABILITIES, Ability, World

T = TypeVar("T")


@dataclass(frozen=True)
class Tables:
    """Questions of both splits (rows of SCHEMA), passages (rows of CORPUS_SCHEMA), and attached files by their SHA-256."""

    train: pa.Table
    held_out: pa.Table
    corpus: pa.Table = field(default_factory=CORPUS_SCHEMA.empty_table)
    attached: Mapping[str, Path | bytes] = field(default_factory=dict)

    def split(self, name: str) -> pa.Table:
        return self.train if name == "train" else self.held_out


class Environment(ClosedModel):
    """The base of all kinds of environments."""

    weight: float = Field(
        1.0,
        ge=0,
        le=1e6,
        allow_inf_nan=False,
        description="its share of the prompts, relative to the weights of the others, at least one of 10 000; 0: it is only "
        "evaluated",
    )
    tools: tuple[str, ...] | None = Field(
        None,
        description="its tools, for questions whose ability rollout.tools.abilities does not name; when not set, "
        "rollout.tools.default",
    )
    prompt: str = Field("", max_length=20_000, description="what is added to the system prompt for its questions")

    def load(self, key: str) -> Tables:
        """Return everything that it gives. `key` is the place of its settings, for errors. Raises ConfigError if that fails."""
        raise NotImplementedError

    def session_source(self) -> SessionSource | None:
        """Return what opens the sessions of its trajectories, where its questions have some (rules of OF_SESSIONS)."""
        return None

    def scores_children(self) -> bool:
        """Return whether it says what the children of a trajectory are worth."""
        return False

    def source(self) -> str:
        """Return the SHA-256 of its own code, which decides questions and scores; empty where nbrl has all of it."""
        return ""


class WorldEnvironment(Environment):
    """An invented world, made from `seed`; train and held-out questions share no entity."""

    kind: Literal["world"] = Field(description="questions about an invented world, whose facts are its corpus")
    seed: int = Field(0, description="seed of the world and its questions")
    abilities: tuple[Ability, ...] = Field(
        ABILITIES,
        min_length=1,
        description="what its questions need, in turns: arithmetic, one_hop, two_hop and notepad; six_step needs five look-ups "
        "and a sum of three numbers, two of which have to be kept meanwhile",
    )
    train: int = Field(1024, ge=1, le=10_000, description="questions to train on")
    held_out: int = Field(256, ge=1, le=2_000, description="questions to evaluate on")

    def load(self, key: str) -> Tables:
        train = World.generate(self.seed, "train", self.train, self.abilities)
        held_out = World.generate(self.seed, "held_out", self.held_out, self.abilities)
        passages = pa.table({"passage": sorted({*train.corpus, *held_out.corpus})}, schema=CORPUS_SCHEMA)
        training, evaluated = [table_of(question.model_dump() for question in world.questions) for world in (train, held_out)]
        return Tables(training, evaluated, passages)


def finished(work: Coroutine[Any, Any, T]) -> T:
    """Return what a coroutine returns, run in a thread of its own: the caller may run in an event loop. Raises what it raises."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
