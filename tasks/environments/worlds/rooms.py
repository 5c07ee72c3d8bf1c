"""A house of rooms: find a thing and bring it to another room; some doors need a key. A text adventure of ALFWorld's kind.

`{kind: own, place: "nbrl.tasks.environments.worlds.rooms:Rooms"}`
"""

import itertools
import random
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, Session, Trajectory, World, WorldRefuses, tool

ROOMS = ("kitchen", "cellar", "attic", "study", "garden", "bath")
THINGS = ("lamp", "book", "cup", "rope", "coin", "map")
START, KEY = "hall", "key"
HELD_OUT = 1 << 20  # first seed of the held-out houses
HELD_OUT_OF = 4  # of so many houses one is held out
MOST_CALLS = 60
TAKEN = 0.3  # of the reward, for the thing in hand
Ability = Literal["fetch", "find", "locked"]


class House:
    """A house that is made from its seed: all rooms are beside the hall, and `locked`, if any, needs the key."""

    def __init__(self, seed: int, rooms: int, ability: str) -> None:
        rng = random.Random(f"house {seed}")
        self.rooms = rng.sample(ROOMS, rooms)
        self.thing = rng.choice(THINGS)
        self.place, self.target = rng.sample(self.rooms, 2)
        self.lies: dict[str, list[str]] = {room: [] for room in (START, *self.rooms)}
        self.lies[self.place].append(self.thing)
        self.locked = ""
        if ability == "locked":
            self.locked = rng.choice((self.place, self.target))
            self.lies[rng.choice([room for room in self.lies if room != self.locked])].append(KEY)

    @property
    def ways(self) -> str:
        return ", ".join(self.rooms)


class Visit(Session):
    """One visit to a house: where the visitor is, and what lies where."""

    def __init__(self, house: House) -> None:
        self._house, self._here, self._calls = house, START, 0
        self._carried: list[str] = []
        self._found = False

    def observe(self) -> str:
        return f"{self._seen()} Rooms: {self._house.ways}."

    @tool
    def look(self) -> str:
        """Say where you are and what lies there."""
        self._count()
        return self._seen()

    @tool
    def go(self, room: str) -> str:
        """Go to a room; say what lies there. A locked door opens to who carries the key.

        Args:
            room: its name
        """
        self._count()
        if room not in self._house.lies:
            raise WorldRefuses(f"there is no room {room!r}")
        if room == self._house.locked and KEY not in self._carried:
            raise WorldRefuses(f"the {room} is locked")
        self._here = room
        return self._seen()

    @tool
    def take(self, thing: str) -> str:
        """Take a thing that lies here.

        Args:
            thing: its name
        """
        self._count()
        if thing not in self._house.lies[self._here]:
            raise WorldRefuses(f"there is no {thing[:40]} here")
        self._house.lies[self._here].remove(thing)
        self._carried.append(thing)
        self._found = self._found or thing == self._house.thing
        return f"You have the {thing}."

    @tool
    def put(self, thing: str) -> str:
        """Put down a thing that you carry.

        Args:
            thing: its name
        """
        self._count()
        if thing not in self._carried:
            raise WorldRefuses(f"you have no {thing[:40]}")
        self._carried.remove(thing)
        self._house.lies[self._here].append(thing)
        self.done = self._at_target()
        return f"The {thing} is in the {self._here}."

    def outcome(self) -> Any:
        return {"reached": self._at_target(), "found": self._found, "calls": self._calls}

    def _at_target(self) -> bool:
        return self._house.thing in self._house.lies[self._house.target]

    def _seen(self) -> str:
        lying = ", ".join(self._house.lies[self._here]) or "nothing"
        return f"You are in the {self._here}. Here: {lying}."

    def _count(self) -> None:
        self._calls += 1
        self.done = self.done or self._calls >= MOST_CALLS


class Rooms(World):
    """Houses by seed: `train` and `held_out` of them, with `rooms` rooms beside the hall and the abilities in turns."""

    def __init__(
        self,
        seed: int = 0,
        train: int = 512,
        held_out: int = 128,
        rooms: int = 3,
        abilities: Sequence[Ability] = ("fetch", "find"),
    ) -> None:
        if not 2 <= rooms <= len(ROOMS):
            raise ValueError(f"rooms is {rooms}; take 2 to {len(ROOMS)}")
        if not abilities or set(abilities) - {"fetch", "find", "locked"}:
            raise ValueError("abilities are fetch, find and locked, at least one of them")
        self._counts = {"train": (seed, train), "held_out": (seed + HELD_OUT, held_out)}
        self._rooms, self._abilities = rooms, tuple(abilities)

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        first, count = self._counts[split]
        seeds = itertools.count(first)
        for number in range(count):
            ability = self._abilities[number % len(self._abilities)]
            reference = next(found for seed in seeds if self._is_in(split, found := {"seed": seed, "ability": ability}))
            house = self._house(reference)
            known = f" It is in the {house.place}." if ability == "fetch" else ""
            yield Question(f"Put the {house.thing} into the {house.target}.{known}", reference, ability=ability)

    def start(self, question: Question, seed: int) -> Visit:
        return Visit(self._house(question.reference))

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay a part for the thing in hand, all of it for the thing at its place."""
        ended = trajectory.outcome
        value = 1.0 if ended["reached"] else TAKEN * ended["found"]
        return Score(success=ended["reached"], value=value, facets={"found": ended["found"], "calls": ended["calls"]})

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Look through rooms until the thing is there, take it and bring it to its place; or, without `good`, try any two rooms.

        Each way says in its thoughts which one it is, so that a policy which learnt both can choose between them.
        """
        house = self._house(question.reference)
        take, put = f"take('{house.thing}')", f"put('{house.thing}')"
        if not good:
            first, second = rng.choice(house.rooms), rng.choice(house.rooms)
            anywhere = [("any room will do", f"go('{first}')"), ("maybe it is here", take), ("now any other", f"go('{second}')")]
            return [*anywhere, ("drop it", put), ("that is all I do", "submit_final_answer('done')")]
        looked = [("look into the next", way) for way in house.rooms[: house.rooms.index(house.place) + 1]]
        if question.ability == "fetch":
            looked = [("it is in there", house.place)]
        fetched = [*((think, f"go('{room}')") for think, room in looked), ("take it with me", take)]
        return [*fetched, ("bring it where it belongs", f"go('{house.target}')"), ("put it down here", put)]

    def _is_in(self, split: str, reference: Any) -> bool:
        """Return whether a house belongs to a split: a house that is evaluated on is never met in training, by no other seed."""
        house = self._house(reference)
        said = f"{house.thing} {house.target} {sorted(house.rooms)}"
        return (zlib.crc32(said.encode()) % HELD_OUT_OF == 0) == (split == "held_out")

    def _house(self, reference: Any) -> House:
        return House(reference["seed"], self._rooms, reference["ability"])
