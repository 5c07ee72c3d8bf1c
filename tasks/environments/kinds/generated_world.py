"""The generated world as an environment."""

from typing import Literal

import pyarrow as pa
from pydantic import Field

from nbrl.tasks.environments.environment import Environment, Tables
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, table_of
from nbrl.tasks.environments.world.world import ABILITIES, Ability, World


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
        asked, evaluated = [table_of(question.model_dump() for question in world.questions) for world in (train, held_out)]
        return Tables(asked, evaluated, passages)
