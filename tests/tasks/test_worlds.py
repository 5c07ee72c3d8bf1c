"""The worlds that ship: seeded, solvable by what they demonstrate, with splits apart, and closed to what a model writes."""

import asyncio
import json
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.sessions import Asked, GuardedSession
from nbrl.agent.trajectory import Status, Trajectory, to_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.own import SHIPPED, OwnEnvironment
from nbrl.tasks.environments.own_world import WorldSessions, reference_of
from nbrl.tasks.environments.worlds.database import Database
from nbrl.tasks.environments.worlds.repair import Repair
from nbrl.tasks.environments.worlds.rooms import Rooms
from nbrl.tasks.environments.worlds.shop import RULES, Shop
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.own import Tasks, World, WorldRefuses
from nbrl.tasks.own import Trajectory as OwnTrajectory
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings

WORLDS: list[Tasks] = [
    Rooms(train=9, held_out=9),
    Rooms(train=9, held_out=9, abilities=["find"]),
    Shop(train=60, held_out=9, abilities=["stated", "asked"]),
    Database(train=40, held_out=9),
    Repair(train=20, held_out=9),
]
END = Trajectory(id="t", group="t", sample=0, question="", ability="", status="done", answer=None, nodes=[], steps=[])


async def run(world: Tasks, question: Any, cells: list[str], folder: Path) -> OwnTrajectory:
    """What the cells do in a session, as Python here."""
    session, toolbox = None, Toolbox([])
    if isinstance(world, World):
        asked = Asked("q", question.text, question.ability, "w", reference_of(question))
        session = await GuardedSession.start(WorldSessions(world), asked, 0, 5.0)
        toolbox = Toolbox(session.tools)
    loop, answers = asyncio.get_running_loop(), list[str]()

    def function(name: str) -> Any:
        keys = [parameter.key for parameter in toolbox.tools[name].parameters]
        return lambda *given: asyncio.run_coroutine_threadsafe(
            toolbox.call(name, dict(zip(keys, given, strict=True))), loop
        ).result(10)

    known = {name: function(name) for name in toolbox.tools} | {"submit_final_answer": answers.append}
    for name, data in question.files:
        (folder / name).write_bytes(data)
    for code in cells:
        code = code.replace("open('", f"open('{folder}/")
        await asyncio.to_thread(exec, code, dict(known))
    files = {name: (folder / name).read_bytes() for name in question.collect if (folder / name).exists()}
    outcome = json.loads(await session.outcome(END)) if session else None
    if session:
        await session.close()
    return OwnTrajectory(question.text, question.ability, "done", answers[0] if answers else None, (), files, outcome)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: type(world).__name__)
def test_what_a_world_demonstrates_as_good_succeeds_and_aimless_acts_seldom_do(world: Tasks, tmp_path: Path) -> None:
    right = {True: 0, False: 0}
    questions = list(world.questions("train"))
    for good in right:
        for number, question in enumerate(questions):
            folder = tmp_path / f"{good}-{number}"
            folder.mkdir()
            cells = [code for _, code in world.demonstrate(question, random.Random(number), good)]
            with suppress(*() if good else (ValueError,)):  # of a call that is refused
                ended = asyncio.run(run(world, question, cells, folder))
                right[good] += world.score(ended, question.reference).success
    assert right[True] == len(questions)
    assert right[False] < len(questions) / 2


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: type(world).__name__)
def test_the_splits_of_a_world_are_apart_and_the_same_each_time(world: Tasks) -> None:
    train, held_out = [[(q.text, q.reference) for q in world.questions(split)] for split in ("train", "held_out")]  # type: ignore[arg-type]
    assert train == [(q.text, q.reference) for q in world.questions("train")]
    assert not {json.dumps(each) for _, each in train} & {json.dumps(each) for _, each in held_out}


def test_a_house_that_is_held_out_is_never_met_in_training() -> None:
    rooms = Rooms(train=300, held_out=100)
    seen = {
        split: {(q.text.partition(" It is")[0], rooms.start(q, 0).observe()) for q in rooms.questions(split)}  # type: ignore[arg-type]
        for split in ("train", "held_out")
    }
    assert not seen["train"] & seen["held_out"]


def test_the_shop_says_nothing_of_what_is_right() -> None:
    shop = Shop(train=30, held_out=1)
    for question in shop.questions("train"):
        session = shop.start(question, 0)
        assert session.rules() == RULES
        said = [question.text, session.observe(), session.ask("What is your order number?"), session.ask("Why?")]
        assert not any(word in " ".join(said) for word in ("refund", "repair", "refuse"))


HOSTILE = [
    "attach database '/tmp/x.db' as x",
    "pragma writable_schema = 1",
    "create table more (a)",
    "drop table things",
    "begin",
    "select load_extension('x')",
    "vacuum into '/tmp/x.db'",
    "select 1; select 2",
    "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n",
    "select zeroblob(1000000000)",
    "select group_concat(a.name || b.name || c.name || d.name) from things a, things b, things c, things d, things e, things f",
    "nonsense",
    "\ud800",
    "select '\0'",
]


OTHERWISE = ["random()", "Randomblob(4)", "current_timestamp", "datetime('now')", "strftime('%s')", "sqlite_version()"]


@pytest.mark.parametrize("function", OTHERWISE)
def test_the_database_has_no_function_that_gives_another_value_when_a_session_is_played_again(function: str) -> None:
    world = Database(train=1, held_out=1)
    (question,) = world.questions("train")
    with pytest.raises(WorldRefuses, match="not authorized"):
        world.start(question, 0).query(f"select {function}")


@pytest.mark.parametrize("sql", HOSTILE, ids=range(len(HOSTILE)))
def test_the_database_refuses_what_is_not_its_own_tables_or_does_not_end(sql: str) -> None:
    world = Database(train=1, held_out=1)
    (question,) = world.questions("train")

    async def work() -> Any:
        asked = Asked("q", question.text, question.ability, "w", reference_of(question))
        session = await GuardedSession.start(WorldSessions(world), asked, 0, 5.0)
        toolbox = Toolbox(session.tools)
        with suppress(ValueError):
            await toolbox.call("query", {"sql": sql})
        assert toolbox.fault is None
        rows = await toolbox.call("query", {"sql": "select count(*) from things"})
        await session.close()
        return rows

    assert asyncio.run(work()) == [[6]]


@pytest.mark.sandbox
def test_worlds_that_ship_are_scored_in_their_own_process(tmp_path: Path) -> None:
    places = {"rooms": "rooms:Rooms", "shop": "shop:Shop", "data": "database:Database", "repair": "repair:Repair"}
    few = {"train": 2, "held_out": 2}
    environments = {name: OwnEnvironment(kind="own", place=f"{SHIPPED}{place}", settings=few) for name, place in places.items()}
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write(environments, storage, layout)
    stored.check(storage, layout)
    prompts = stored.read(storage, layout, "train")
    prompts = prompts.append_column("group", prompts["id"])
    outcomes = {
        "rooms": {"reached": True, "found": True, "calls": 4},
        "shop": {"decision": "refund", "right": "refuse", "looked": True, "calls": 2},
        "data": {"right": True, "queries": 1},
        "repair": None,
    }
    played = [
        Trajectory(
            id=row["group"],
            group=row["group"],
            sample=0,
            question=row["question"],
            ability=row["ability"],
            status=Status.DONE,
            answer="done",
            nodes=[],
            steps=[],
            environment=row["environment"],
            outcome=json.dumps(outcomes[row["environment"]]) if outcomes[row["environment"]] else "",
        )
        for row in prompts.to_pylist()
    ]
    scored = score_table(with_references(to_table(played), prompts), RewardSettings()).to_pylist()
    assert [(row["environment"], row["success"], row["unscored"]) for row in scored[::2]] == [
        ("rooms", 1.0, ""),
        ("shop", 0.0, ""),
        ("data", 1.0, ""),
        ("repair", 0.0, ""),
    ]
    assert all(environment.source() for environment in environments.values())
