"""Sessions on the storage of a run, and the batches that are made of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.trajectory import Node, Status, Step, Trajectory, from_table
from nbrl.infra.errors import DamagedError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import BrokenInvariantError, ConfigError, RunError
from nbrl.tasks.nodes import recorded
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.rollout import rollout
from nbrl.tasks.recorded.store import StoredSession, complete_groups, keep, policies_since, stored_sessions, used_after
from nbrl.tasks.runs.check_recorded import check_recorded
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.services.services import Services
from tests.tasks.nodes.doubles import SCOPE, services

LIVE = ["environments.live={kind: recorded}", "environments.world.weight=0"]
FIRST = SCOPE.model_copy(update={"iteration": 0, "weights": Weights(digest="p0")})


def session(name: str, group: str, moment: float, version: str = "0", reward_: float = 1.0) -> Trajectory:
    nodes = [
        Node(parent=-1, kind="task", step=0, token_ids=[1, 2]),
        Node(parent=0, kind="sampled", step=0, token_ids=[3], logprobs=[-0.5], weights_version=version),
    ]
    outcome = f'{{"success": {str(reward_ >= 1).lower()}, "reward": {reward_}, "metrics": {{}}}}'
    return Trajectory(
        id=name, group=group, sample=0, question=f"about {group}", ability="recorded", status=Status.ANSWERED, answer="a",
        nodes=nodes, steps=[Step(kind="reply", code="yes")], started_at=moment, seconds=1.0, outcome=outcome,
    )  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Services:
    return services(tmp_path, overrides=["rollout.prompts=2", *LIVE])


@pytest.fixture
def run(made: Services) -> Run:
    run = Run(name="r", run_id="x", config_digest="", seed=3, recipe="", policy="p0", config={})
    made.storage.write_json(run.layout.identity, run.model_dump(mode="json"))
    return run


def kept(storage: Storage, run: Run, *sessions: Trajectory) -> None:
    for each in sessions:
        keep(storage, run, Weights(digest="p0"), each)


def sampled(made: Services, round_: int = 0, used: Artifact | None = None) -> Artifact:
    return asyncio.run(asyncio.wait_for(recorded.sample.alone(made, FIRST, round_, used), 20))


def test_a_round_is_the_first_complete_groups_and_no_session_comes_twice(made: Services, run: Run) -> None:
    groups = ["g", "h", "g", "g", "h", "g", "i", "i"]
    kept(made.storage, run, *(session(f"s{n}", group, float(n), reward_=n / 10) for n, group in enumerate(groups)))
    prompts = sampled(made)
    table = made.read(prompts)
    assert table["group"].to_pylist() == ["g:1:1:0", "h:1:1:1"]
    index = asyncio.run(rollout.alone(made, FIRST, prompts, 0))
    assert made.storage.read_index(index.path, index.digest)["id"].to_pylist() == [
        "g:1:1:0-0",
        "g:1:1:0-1",
        "h:1:1:1-0",
        "h:1:1:1-1",
    ]
    (part,) = index.parts
    assert {each.environment for each in from_table(made.storage.read_table(part))} == {"live"}
    scored = made.read(asyncio.run(reward.alone(made, FIRST, prompts, index, 0)))
    assert scored["qa"].to_pylist() == [0.0, 0.2, 0.1, 0.4]
    used = asyncio.run(recorded.retire.alone(made, FIRST, None, prompts, 0))
    assert made.read(used)["id"].to_pylist() == ["s0", "s2", "s1", "s4"]
    second = sampled(made, 1, used)
    assert made.read(second)["group"].to_pylist() == ["g:1:2:0", "i:1:2:1"]


def test_a_batch_waits_for_its_sessions_and_says_what_is_missing(
    made: Services, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded, "LOOK_S", 0.05)

    async def late() -> Artifact:
        waiting = asyncio.create_task(recorded.sample.alone(made, FIRST, 0, None))
        for number in range(4):
            await asyncio.sleep(0.1)
            assert not waiting.done()
            kept(made.storage, run, session(f"s{number}", f"g{number % 2}", float(number)))
        return await asyncio.wait_for(waiting, 20)

    assert asyncio.run(late()).values["sample/waiting_seconds"] >= 0.3
    live = made.config.environments["live"].model_copy(update={"wait_s": 0.1})
    made.config = made.config.model_copy(update={"environments": {**made.config.environments, "live": live}})
    with pytest.raises(
        RunError, match=r"environments.live: within 0.1 s agents filled 0 of 2 groups of 2 sessions with weights 0"
    ):
        sampled(made, 1, asyncio.run(recorded.retire.alone(made, FIRST, None, sampled(made), 0)))


def test_sessions_of_older_weights_are_not_taken(made: Services, run: Run) -> None:
    old, new = Weights(updates=1, checkpoint="c", digest="w1"), Weights(updates=2, checkpoint="c", digest="w2")
    keep(made.storage, run, old, session("old", "g", 0.0, "1"))
    keep(made.storage, run, new, session("new", "g", 1.0, "2"))
    keep(made.storage, run, Weights(updates=2, checkpoint="c", digest="done again"), session("other", "g", 2.0, "2"))
    assert [each.id for each in stored_sessions(made.storage, run, [new], {})] == ["new"]
    assert [each.id for each in stored_sessions(made.storage, run, [old, new], {})] == ["old", "new"]
    assert policies_since(made.storage, run, 0) == [Weights(digest="p0")]


@pytest.mark.parametrize("version", ["-1", "1", "abc", "", "1.5"])
def test_a_session_that_lies_below_other_weights_is_as_if_it_were_not_there(made: Services, run: Run, version: str) -> None:
    kept(made.storage, run, session("liar", "g", 0.0, version), session("s", "g", 1.0))
    assert [each.id for each in stored_sessions(made.storage, run, [Weights(digest="p0")], {})] == ["s"]


def test_a_batch_of_older_weights_ends_the_run(made: Services, run: Run) -> None:
    kept(made.storage, run, *(session(f"s{n}", f"g{n // 2}", float(n)) for n in range(4)))
    later = FIRST.model_copy(update={"weights": Weights(updates=1, checkpoint="c", digest="w1")})
    with pytest.raises(BrokenInvariantError, match="answered by weights '0', and this batch begins with 1"):
        asyncio.run(rollout.alone(made, later, sampled(made), 0))


def test_sessions_that_cannot_come_again_are_forgotten(made: Services, run: Run) -> None:
    kept(made.storage, run, *(session(f"s{n}", f"g{n // 2}", float(n)) for n in range(4)))
    used = asyncio.run(recorded.retire.alone(made, FIRST, None, sampled(made), 0))
    assert len(made.read(used)) == 4
    assert len(used_after(made.read(used), made.read(sampled(made)).slice(0, 0), 1)) == 0


def test_damaged_and_strange_objects_are_as_if_they_were_not_there(made: Services, run: Run) -> None:
    kept(made.storage, run, *(session(f"s{n}", f"g{n // 2}", float(n)) for n in range(4)))
    folder = run.layout.sessions(0, "p0")
    first = made.storage.list(folder)[0]
    for name, data in (
        ("a.parquet", b""),
        ("0" * 64 + ".parquet", b"PAR1"),
        ("note.txt", b"x"),
        ("x/" + "0" * 64 + ".parquet", b""),
    ):
        made.storage.write_bytes(f"{folder}/{name}", data)
    assert len(stored_sessions(made.storage, run, [Weights(digest="p0")], {})) == 4
    prompts = sampled(made)
    made.storage.write_bytes(first, made.storage.read_bytes(first)[:-9] + b"123456789")
    assert len(stored_sessions(made.storage, run, [Weights(digest="p0")], {})) == 3
    with pytest.raises(DamagedError):
        asyncio.run(rollout.alone(made, FIRST, prompts, 0))


names = st.lists(st.sampled_from("abc"), max_size=30)


@given(groups=names, used=st.sets(st.integers(0, 29)), size=st.integers(1, 4))
def test_groups_are_whole_of_one_name_and_of_unused_sessions(groups: list[str], used: set[int], size: int) -> None:
    sessions = [StoredSession(str(number), group, "", float(number), 0, "", "") for number, group in enumerate(groups)]
    complete = complete_groups([*sessions, *sessions], {str(each) for each in used}, size)  # each is there twice
    ids = [each.id for group in complete for each in group]
    assert len(ids) == len(set(ids))
    assert not {int(each) for each in ids} & used
    assert all(len(group) == size and len({each.group for each in group}) == 1 for group in complete)
    free = [group for number, group in enumerate(groups) if number not in used]
    assert len(complete) == sum(free.count(name) // size for name in set(free))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["environments.world.weight=1"], "set environments.world.weight to 0"),
        (["environments.world=null"], "name another environment with weight 0"),
        (["environments.more={kind: recorded}"], "environments.more is recorded, and so is live"),
        (["pipeline.lag=2"], "pipeline.lag is 2"),
        (["pipeline.stream=true", "pipeline.lag=1"], "pipeline.stream has no effect"),
        (["select.retire_at=0.9"], "select.retire_at has no effect"),
    ],
)
def test_what_cannot_work_with_recorded_sessions_is_refused(overrides: list[str], said: str) -> None:
    config = load("tiny-cpu", [*LIVE, *overrides])
    with pytest.raises(ConfigError, match=said):
        check_recorded(config)


@pytest.mark.parametrize("keys", [{"tools": ["search"]}, {"prompt": "x"}, {"weight": 0}, {"train": 3}])
def test_keys_that_would_not_act_are_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"environments\.live"):
        load("tiny-cpu", ["environments.live=" + str({"kind": "recorded", **keys})])
