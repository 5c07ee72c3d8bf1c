"""What becomes of an episode whose deadline passed."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.episode import Task
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout.episodes import PLAYS, Episodes, HiddenParts
from nbrl.tasks.rollout.plan import RoundPlan
from nbrl.tasks.rollout.samplers import Sampler
from nbrl.tasks.rollout.sessions import SessionPool
from tests.agent.test_direct import TASK, Says
from tests.tasks.test_runner import ROUND, plan

HASTY = AgentSettings(context_tokens=2000, action_tokens=100, deadline_s=0.1)
SLOW = Says("Answer: 42", wait_s=60)


def played(
    tmp_path: Path, samplers: list[tuple[Says, bool]], kind: type[Episodes] = Episodes, missed_s: float = 0
) -> tuple[Trajectory, int]:
    """The trajectory, and how often a policy was taken; each with whether its engine was away."""
    nobody: Any = None
    given = plan(Storage(StorageSettings(root=str(tmp_path))))
    episodes = kind(replace(given, agent=HASTY), nobody, EstimatingRenderer(), SessionPool({}, 1.0))
    taken = 0

    def new() -> Sampler:
        nonlocal taken
        policy, away = samplers[min(taken, len(samplers) - 1)]
        taken += 1

        async def was_away() -> bool:
            return away

        return Sampler(policy, was_away, lambda: missed_s)

    direct = replace(ROUND, direct=True)
    return asyncio.run(episodes.play(TASK, HiddenParts({}, [], ()), new, direct)), taken


def test_an_episode_that_had_no_more_time_with_its_engine_there_is_over(tmp_path: Path) -> None:
    done, taken = played(tmp_path, [(SLOW, False)])
    assert (done.status, taken) == (Status.TIMEOUT, 1)


def test_an_episode_whose_time_passed_while_its_engine_was_away_is_played_again(tmp_path: Path) -> None:
    done, taken = played(tmp_path, [(SLOW, True), (Says("Answer: 42"), True)])
    assert (done.status, done.answer, taken) == (Status.ANSWERED, "42", 2)


def test_an_engine_that_is_away_each_time_is_a_fault_and_no_wrong_answer(tmp_path: Path) -> None:
    done, taken = played(tmp_path, [(SLOW, True)])
    assert (done.status, taken) == (Status.FAILED, PLAYS)
    assert "its engine was away each of 3 times" in done.failure


def test_an_episode_that_lost_much_of_its_time_is_played_again_and_one_that_lost_it_each_time_is_slow(tmp_path: Path) -> None:
    done, taken = played(tmp_path, [(SLOW, False), (Says("Answer: 42"), False)], missed_s=HASTY.deadline_s)
    assert (done.status, taken) == (Status.ANSWERED, 2)
    done, taken = played(tmp_path, [(SLOW, False)], missed_s=HASTY.deadline_s)
    assert (done.status, taken) == (Status.TIMEOUT, PLAYS)
    done, taken = played(tmp_path, [(SLOW, False)], missed_s=HASTY.deadline_s / 100)
    assert (done.status, taken) == (Status.TIMEOUT, 1)


@pytest.mark.parametrize("status", [Status.STEP_LIMIT, Status.NO_ANSWER])
def test_an_episode_whose_last_cell_had_no_more_time_was_not_given_its_time_either(tmp_path: Path, status: Status) -> None:
    class Cut(Episodes):
        plays = 0

        async def _once(
            self, task: Task, hidden: HiddenParts, sampler: Sampler, plan: RoundPlan, limits: AgentSettings
        ) -> Trajectory:
            self.plays += 1
            if self.plays == 1:
                return TASK.ended(status, seconds=HASTY.deadline_s)
            return TASK.ended(Status.ANSWERED, answer="42")

    done, _ = played(tmp_path, [(SLOW, True)], Cut)
    assert done.status is Status.ANSWERED
