"""rollout: what counts as a finished round."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Status
from nbrl.infra.errors import EngineError
from nbrl.tasks.errors import BrokenInvariantError, RolloutError
from nbrl.tasks.layout.stages import chunk
from nbrl.tasks.nodes.rollout import check_failures, rollout
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.services.services import Services
from tests.tasks.nodes.doubles import SCOPE, DoubleFleet, prompts, services


def rolled_out(made: Services) -> Artifact:
    return asyncio.run(rollout.alone(made, SCOPE, prompts(made), 0))


def test_every_prompt_is_played_group_size_times_and_the_references_stay_behind(tmp_path: Path) -> None:
    made = services(tmp_path)
    done = rolled_out(made)
    assert done.values["rollout/trajectories"] == 4.0
    assert done.values["rollout/status/answered"] == 4.0
    asked = made.runners.asked  # type: ignore[attr-defined]
    assert [row["id"] for row in asked] == ["q0-0", "q0-1", "q1-0", "q1-1"]
    assert len({row["seed"] for row in asked}) == 4
    assert not any("42" in str(row) for row in asked)


def test_episodes_get_longer_by_the_iteration(tmp_path: Path) -> None:
    def steps(iteration: int, *overrides: str) -> int | None:
        made, scope = services(tmp_path, overrides=overrides), SCOPE.model_copy(update={"iteration": iteration})
        asyncio.run(rollout.alone(made, scope, prompts(made), 0))
        found: int | None = made.runners.max_steps  # type: ignore[attr-defined]
        return found

    horizon = "rollout.horizon={steps: [1, 2, 4], every: 10}"
    assert [steps(iteration, horizon) for iteration in (0, 9, 10, 19, 20, 99)] == [1, 1, 2, 2, 4, 4]
    assert steps(3) is None


ANSWERED, FAILED = Status.ANSWERED, Status.FAILED


def test_one_failed_trajectory_is_data(tmp_path: Path) -> None:
    done = rolled_out(services(tmp_path, ends=[ANSWERED, ANSWERED, FAILED, ANSWERED]))
    assert done.values["rollout/status/failed"] == 1.0


@pytest.mark.parametrize(("ends", "failed"), [([FAILED], 4), ([ANSWERED, FAILED], 2)])
def test_a_round_in_which_too_many_failed_is_no_data(tmp_path: Path, ends: list[Status], failed: int) -> None:
    made = services(tmp_path, ends=ends)
    with pytest.raises(RolloutError, match=rf"{failed} of 4 trajectories failed .* allows 1; the first says: the wire was cut"):
        rolled_out(made)
    assert not made.storage.exists(SCOPE.layout.round(0).trajectories)


@pytest.mark.parametrize(("share", "allowed"), [(0.0, 0), (0.05, 2), (0.1, 3), (0.99, 29)])
def test_as_many_may_fail_as_the_share_rounded_up_but_never_all(share: float, allowed: int) -> None:
    def round_with(failed: int) -> pa.Table:
        status = [FAILED] * failed + [ANSWERED] * (30 - failed)
        return pa.table({"status": status, "failure": ["the wire was cut"] * 30})

    check_failures(round_with(allowed), share)
    with pytest.raises(RolloutError):
        check_failures(round_with(allowed + 1), share)


def test_actions_of_other_weights_stop_the_run(tmp_path: Path) -> None:
    made = services(tmp_path, version="1")
    with pytest.raises(BrokenInvariantError, match=r"sampled from weights \['1'\] where only '2' are published"):
        rolled_out(made)
    assert not made.storage.exists(SCOPE.layout.round(0).trajectories)


def test_engines_are_brought_to_the_iterations_weights_first(tmp_path: Path) -> None:
    fleet = DoubleFleet("initial")
    rolled_out(services(tmp_path, fleet))
    ((checkpoint, version),) = fleet.published
    assert checkpoint
    assert (checkpoint.place, version) == ("runs/r/checkpoints/000002-e0001-abcdef", "2")


def test_before_the_first_update_there_is_no_checkpoint_to_bring(tmp_path: Path) -> None:
    fleet = DoubleFleet("initial")
    first = SCOPE.model_copy(update={"weights": Weights()})
    made = services(tmp_path, fleet, version="0")
    asyncio.run(rollout.alone(made, first, prompts(made), 0))
    assert fleet.published == [(None, "0")]


def test_a_dead_engine_ends_the_rollout(tmp_path: Path) -> None:
    class Dead(DoubleFleet):
        def check_health(self) -> None:
            raise EngineError("the engine ended: out of memory")

    with pytest.raises(EngineError, match="out of memory"):
        rolled_out(services(tmp_path, Dead("2")))


def test_chunks_of_the_same_policy_that_another_process_left_are_taken_up(tmp_path: Path) -> None:
    made, other = services(tmp_path), SCOPE.model_copy(update={"epoch": "e0000-abcdef"})
    left = {
        "same": chunk(other.layout.round(0).chunks("w2"), "x"),
        "another policy": chunk(other.layout.round(0).chunks("w1"), "x"),
        "another round": chunk(other.layout.round(1).chunks("w2"), "x"),
    }
    for key in left.values():
        made.storage.write_bytes(key, b".")
    rolled_out(made)
    assert made.runners.earlier == (other.layout.round(0).chunks("w2"),)  # type: ignore[attr-defined]
