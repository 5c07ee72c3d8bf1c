"""reward, select and advantage: from a round's trajectories to what the update learns from."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.infra.errors import DamagedError
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.select import select
from nbrl.tasks.nodes.update import advantage, advantage_table
from nbrl.tasks.reward.score import SCHEMA
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.services import Services
from tests.tasks.nodes.doubles import SCOPE, services


def rewards(made: Services, groups: dict[str, list[float]], round_: int = 0, failed: str = "") -> Artifact:
    """Rewards of groups by the exact match of their trajectories; those of the group `failed` failed."""
    rows = [
        {"trajectory": f"{group}-{n}", "group": group, "ability": "qa", "success": em, "total": em, "step_rewards": [em]}
        | {"status": "failed" if group == failed else "answered", "qa": em, "f1": em, "answered": 1.0, "format": 1.0}
        | {"em": em, "execution": 1.0, "length": 0.0, "environment": "e", "own": [], "unscored": ""}
        for group, ems in groups.items()
        for n, em in enumerate(ems)
    ]
    path = SCOPE.layout.round(round_).rewards
    return Artifact(path=path, digest=made.storage.write_table(path, pa.Table.from_pylist(rows, schema=SCHEMA)))


def selected(made: Services, scored: Artifact, wanted: int, round_: int = 0) -> tuple[Artifact, dict[str, str]]:
    done = asyncio.run(select.alone(made, SCOPE, scored, wanted, round_))
    rows = made.storage.read_table(done.path).to_pylist()
    return done, {row["group"]: "kept" if row["kept"] else row["reason"] for row in rows}


def test_the_first_groups_with_signal_fill_the_batch_and_the_rest_is_surplus(tmp_path: Path) -> None:
    made = services(tmp_path)
    done, found = selected(made, rewards(made, {"a": [0, 0], "b": [0, 1], "c": [1, 1], "d": [1, 0], "e": [0, 1]}), wanted=2)
    assert found == {"a": "all_wrong", "b": "kept", "c": "all_right", "d": "kept", "e": "surplus"}
    assert done.values["select/kept"] == 2.0
    assert done.values["select/dropped/surplus"] == 1.0


def test_of_a_kept_group_only_the_resampled_trajectories_are_learned_from(tmp_path: Path) -> None:
    made = services(tmp_path, overrides=["select.resample_to=2", "rollout.group_size=4"])
    scored = rewards(made, {"a": [0, 0, 0, 1], "b": [1, 1, 1, 1], "c": [1, 0, 0, 0]})
    done, found = selected(made, scored, wanted=2)
    assert found == {"a": "kept", "b": "all_right", "c": "kept"}
    named = made.storage.read_table(done.path)["trajectories"].to_pylist()
    assert [len(each) for each in named] == [2, 0, 2]
    made_from = asyncio.run(advantage.alone(made, SCOPE, [scored], [done]))
    table = made.storage.read_table(made_from.path)
    assert sorted(table["trajectory"].to_pylist()) == sorted([*named[0], *named[2]])
    assert {"a-3", "c-0"} <= set(table["trajectory"].to_pylist())


def test_a_table_that_is_not_what_its_node_wrote_is_not_read(tmp_path: Path) -> None:
    """A valid one of other content, as of another writer, and one with a flipped bit."""
    made = services(tmp_path)
    scored, other = rewards(made, {"a": [0, 1]}), rewards(made, {"b": [1, 1]}, round_=1)
    whole = made.storage.read_bytes(scored.path)
    for damaged in (made.storage.read_bytes(other.path), whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]):
        made.storage.write_bytes(scored.path, damaged)
        with pytest.raises(DamagedError, match="is not what was written there"):
            selected(made, scored, wanted=4)
        with pytest.raises(DamagedError):
            asyncio.run(advantage.alone(made, SCOPE, [scored], []))


def test_a_group_with_a_failed_trajectory_is_set_aside_whole_and_counted(tmp_path: Path) -> None:
    made = services(tmp_path)
    done, found = selected(made, rewards(made, {"a": [0, 1], "b": [0, 1]}, failed="a"), wanted=4)
    assert found == {"a": "failed", "b": "kept"}
    assert done.values["select/dropped/failed"] == 1.0


def test_chance_is_the_same_for_the_same_group_in_every_attempt(tmp_path: Path) -> None:
    made = services(tmp_path, overrides=["select.drop_rate=0.5"])
    scored = rewards(made, {f"g{n}": [0, 0] for n in range(40)})
    first, again = (selected(made, scored, wanted=40)[1] for _ in range(2))
    assert first == again
    assert set(first.values()) == {"kept", "all_wrong"}


def test_advantages_are_of_the_kept_groups_of_all_rounds(tmp_path: Path) -> None:
    made = services(tmp_path)
    rounds = [rewards(made, {"a": [0, 1], "b": [0, 0]}), rewards(made, {"c": [1, 0]}, round_=1)]
    chosen = [selected(made, scored, wanted=4, round_=n)[0] for n, scored in enumerate(rounds)]
    done = asyncio.run(advantage.alone(made, SCOPE, rounds, chosen))
    table = made.storage.read_table(done.path).to_pylist()
    assert [row["trajectory"] for row in table] == ["a-0", "a-1", "c-0", "c-1"]
    assert done.values["advantage/trajectories"] == 4.0
    assert done.values["advantage/max_abs"] == pytest.approx(0.866, abs=1e-3)


def test_with_a_critic_the_table_holds_rewards_for_the_learner(tmp_path: Path) -> None:
    made = services(tmp_path, overrides=["advantage.estimator=gae", "update.critic.lr=1e-4"])
    scored = rewards(made, {"a": [0, 1]})
    done = asyncio.run(advantage.alone(made, SCOPE, [scored], [selected(made, scored, wanted=1)[0]]))
    assert made.storage.read_table(done.path).column_names == ["trajectory", "step", "reward"]
    assert "advantage/max_abs" not in done.values


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_advantage_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    rows = [
        {"trajectory": "a", "group": "g", "step_rewards": [float("inf")]},
        {"trajectory": "b", "group": "g", "step_rewards": [0.0]},
    ]
    with pytest.raises(BrokenInvariantError, match="made an advantage that is not finite"):
        advantage_table(rows, services(tmp_path).config.advantage)


def test_a_group_is_scored_against_its_own_questions_references_whatever_its_epoch() -> None:
    columns = ("id", "ability", "status", "question", "answer", "steps", "files", "outcome")
    trajectories = pa.table({name: ["x", "y"] for name in columns} | {"group": ["q.1", "q"]})
    prompts = pa.table({"id": ["q", "q"], "group": ["q", "q.1"], "answers": [["first"], ["second"]], "rule": ["qa", "number"]})
    prompts = prompts.append_column("reference", pa.array(["", "{}"])).append_column("environment", pa.array(["w", "w"]))
    joined = with_references(trajectories, prompts)
    assert [joined[name].to_pylist() for name in ("answers", "rule", "reference")] == [
        [["second"], ["first"]],
        ["number", "qa"],
        ["{}", ""],
    ]
