"""sample and retire in a run that learns from recorded sessions: their sessions take the place of questions."""

import asyncio
import time
from collections.abc import Collection

import pyarrow as pa

from nbrl.tasks.errors import RunError
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.recorded.store import (
    StoredSession,
    complete_groups,
    policies_since,
    prompts_of,
    stored_sessions,
    used_after,
)
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.services import Services

LOOK_S = 1.0  # between two looks at the storage
Groups = list[list[StoredSession]]


@durable
async def sample(services: Services, scope: Scope, round_: int, used: Artifact | None = None) -> Artifact:
    """Wait until agents elsewhere have filled the groups of a round with sessions that no round had, answered by the weights of
    the scope or newer ones; return a prompt for each group.

    Raises RunError if they have not within `wait_s` seconds.
    """
    settings, count = services.config.recorded, services.config.rollout.prompts
    name = next(name for name, each in services.config.environments.items() if each is settings)
    run = await asyncio.to_thread(known_run, services.storage, scope.run)
    past = set[str]() if used is None else set(services.read(used)["id"].to_pylist())
    started, known, said = time.monotonic(), dict[str, StoredSession](), False
    while len(groups := await asyncio.to_thread(_complete, services, run, scope, past, known)) < count:
        services.engines.check_health()
        if not said:
            size, said = services.config.rollout.group_size, True
            services.progress.say(
                f"environments.{name}: {scope.title} waits for {count} groups of {size} sessions; "
                f"`nbrl serve {scope.run} --record` answers and records them"
            )
        services.progress.advanced("sample", len(groups), count)
        waited = time.monotonic() - started
        if settings is not None and settings.wait_s is not None and waited > settings.wait_s:
            size, option = services.config.rollout.group_size, services.storage.settings.option
            raise RunError(
                f"environments.{name}: within {settings.wait_s:g} s agents filled {len(groups)} of {count} groups of {size} "
                f"sessions with weights {scope.updates}; let them ask `nbrl serve {scope.run} --record`, and go on with what "
                f"was recorded by `nbrl resume {scope.run}{option}`"
            )
        await asyncio.sleep(LOOK_S)
    prompts = prompts_of(groups[:count], f"{scope.iteration + 1}:{round_ + 1}", name)
    path = scope.layout.round(round_).prompts
    digest = await asyncio.to_thread(services.storage.write_table, path, prompts)
    counts = {"sample/prompts": count, "sample/positions": count, "sample/waiting_seconds": time.monotonic() - started}
    return Artifact(path=path, digest=digest, metrics=of(counts, "sum"))


def _complete(services: Services, run: Run, scope: Scope, used: Collection[str], known: dict[str, StoredSession]) -> Groups:
    policies = policies_since(services.storage, run, scope.updates)
    sessions = stored_sessions(services.storage, run, policies, known)
    return complete_groups(sessions, used, services.config.rollout.group_size)


@durable
def retire(services: Services, scope: Scope, before: Artifact | None, prompts: Artifact, round_: int) -> Artifact:
    """Add the sessions of a round to those that were learned from `before`."""
    known: pa.Table | None = None if before is None else services.read(before)
    table = used_after(known, services.read(prompts), scope.updates)
    path = scope.layout.round(round_).retired
    return Artifact(path=path, digest=services.storage.write_table(path, table))
