"""Checks the batches of a stream: not when what finished, but that every group in flight is admitted once, and none too old."""

from collections.abc import Iterator

import pyarrow as pa

from nbrl.agent.trajectory import from_table
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.nodes.select import expired_in
from nbrl.tasks.nodes.streamed import check_begun, rule_of, stream_prompts
from nbrl.tasks.rollout.chunks import index_of, with_tokens
from nbrl.tasks.rollout.stream import GroupInFlight, stream_ages
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact


def check_admitted(
    config: RunConfig, questions: pa.Table, seed: int, groups: list[GroupInFlight], prompts: pa.Table, turn: int
) -> Iterator[str]:
    """Yield the contradictions of the prompts of batch number `turn`, from 0, of which `groups` were in flight."""
    positions = set(prompts["position"].to_pylist())
    admitted = [group for group in groups if group.position in positions]
    if len(admitted) != len(prompts):
        yield "a group was admitted that was not in flight, or twice"
    elif not prompts.select([name for name in prompts.column_names if name != "parts"]).equals(
        stream_prompts(config, questions, seed, admitted)
    ):
        yield "the prompts are not those of their positions in the run's order"
    if late := set(rule_of(config).due(groups, turn)) - positions:
        yield f"the group at position {min(late)} had to be admitted, and was not"


def check_streamed(
    config: RunConfig, prompts: pa.Table, trajectories: pa.Table, artifact: Artifact, updates: int
) -> Iterator[str]:
    """Yield the contradictions of the ages of admitted trajectories, from which weights after `updates` updates learn."""
    made = from_table(trajectories)
    index = with_tokens(index_of(made, "", ""), made)
    begun = dict(zip(prompts["group"].to_pylist(), prompts["updates"].to_pylist(), strict=True))
    try:
        check_begun(index, begun, updates, rule_of(config).mixed)
    except BrokenInvariantError as error:
        yield str(error)
    fresh = begun.keys() - expired_in(index, updates, config.pipeline.lag)
    if len(fresh) < config.rollout.prompts:  # more where what had expired was sampled again, and the selection leaves those out
        yield f"{len(fresh)} groups are young enough to be learned from, and a batch has {config.rollout.prompts}"
    if any(artifact.values.get(name) != value for name, value in stream_ages(index, updates).items()):
        yield "the ages of the tokens are not those of the trajectories"
