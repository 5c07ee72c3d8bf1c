"""Checks the evaluations of a run."""

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.audit.recompute import same, sampled_from
from nbrl.tasks.audit.rescore import rescored
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.nodes.evaluate import asked
from nbrl.tasks.nodes.rollout import check_weights
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights


def check_evaluation(
    storage: Storage, config: RunConfig, run: Run, result: NodeResult, policies: dict[str, Weights]
) -> Iterator[str]:
    """Contradictions of one evaluation. `policies` are those that the run's iterations sampled from or made, by digest."""
    policy = policies.get(result.inputs[0])
    if policy is None:
        yield "it evaluated weights that no iteration of this run made"
        return
    artifact = result.artifact
    sampled, *_ = filter(is_trajectories, artifact.parts)
    trajectories = storage.read_table(sampled, artifact.parts[sampled])
    questions = stored.read(storage, run.layout.data, "held_out")
    rows = asked(questions, config.evaluate, run.seed)
    if Counter(trajectories["id"].to_pylist()) != Counter(row["id"] for row in rows):
        yield "its trajectories are not those of the held-out questions, each once"
        return
    try:
        check_weights(sampled_from(trajectories), str(policy.updates))
    except BrokenInvariantError as error:
        yield str(error)
    rewards: pa.Table = storage.read_table(artifact.path, artifact.digest)
    again = rescored(storage, config.reward, trajectories, questions, rewards)
    if again.lost:
        yield again.lost
    elif not same(rewards, again.rewards):
        yield "the rewards are not what its trajectories earn"
