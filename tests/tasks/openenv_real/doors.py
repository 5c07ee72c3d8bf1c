"""A game on OpenEnv's own server: behind one of three doors is a prize. Its application is `doors:app`."""

from typing import Any, Literal
from uuid import uuid4

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation, State
from pydantic import Field, RootModel


class Open(Action):
    """Opens a door."""

    kind: Literal["open_door"] = "open_door"
    door: int = Field(ge=1, le=3, description="which door, from 1 to 3")


class Listen(Action):
    """Listens at a door."""

    kind: Literal["listen"] = "listen"
    door: int = Field(description="which door")


class Move(RootModel[Open | Listen]):
    """Opens a door or listens at one."""


class Room(Observation):
    heard: str = Field(default="", description="what there is to hear")


class Doors(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._prize, self._state = 1, State(episode_id=str(uuid4()))

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> Room:
        self._prize, self._state = (seed or 0) % 3 + 1, State(episode_id=episode_id or str(uuid4()))
        return Room(heard="three doors are before you")

    def step(self, action: Move, timeout_s: float | None = None, **_: Any) -> Room:
        self._state.step_count += 1
        move = action.root
        if isinstance(move, Listen):
            if move.door not in (1, 2, 3):
                raise LookupError(f"{__file__} knows no door {move.door}")
            return Room(heard="a prize" if move.door == self._prize else "nothing", reward=0.1)
        return Room(heard="the end", reward=1.0 if move.door == self._prize else 0.0, done=True)

    @property
    def state(self) -> State:
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        return EnvironmentMetadata(name="doors", description="Open the door of the prize.")


app = create_app(Doors, Move, Room, env_name="doors", max_concurrent_envs=8)
