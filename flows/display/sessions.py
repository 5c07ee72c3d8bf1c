"""Plays the session of one stored trajectory again."""

from nbrl.agent.trajectory import Trajectory
from nbrl.infra.storage import Storage
from nbrl.tasks.audit.sessions import SessionReplay, row_of
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS
from nbrl.tasks.runs.recipes import trusted_config
from nbrl.tasks.runs.run import known_run

ACTING = ("environments",)  # settings of the run that are used


def replayed(storage: Storage, key: str, name: str, trajectory: Trajectory, trust: bool) -> tuple[str, bool]:
    """Return a sentence on how the session of a trajectory in the table `key` came out again, and whether it was the same.

    Raises ConfigError if it had none, or cannot be played again.
    """
    kind = RUNS if key.startswith(f"{RUNS}/") else EVALUATIONS
    config = trusted_config(storage, name, (), trust, kind, used=ACTING)
    row = row_of(storage, known_run(storage, name, kind), key, trajectory)
    if row["reference"] is None:
        raise ConfigError(f"{trajectory.id} had no session; `nbrl agent --replay {name}/{trajectory.id}` runs its cells again")
    with SessionReplay(config.environments, config.sandbox.call_timeout_s) as again:
        found = again.differences(row, trajectory)
        if again.counts.not_replayable:
            raise ConfigError(f"sessions of the environment {row['environment']} say that they cannot be played again")
        if again.counts.in_part:
            raise ConfigError(f"the calls of {trajectory.id} were recorded in part, as they said too much")
    calls = sum(len(step.tool_calls) for step in trajectory.steps)
    return (found[0], False) if found else (f"its session gave the same opening, answers to {calls} calls and outcome", True)
