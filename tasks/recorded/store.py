"""Sessions of agents elsewhere on the storage of a run: each is an object of its own, below the weights that answered it."""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.infra.errors import DamagedError
from nbrl.infra.parse import json_value
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.reward.rules.rule import OUTCOME
from nbrl.tasks.rollout.chunks import index_of, storable, write
from nbrl.tasks.runs.history import finished_iterations, read_record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.selection.judge import RETIRED_SCHEMA

ABILITY = "recorded"
SESSION = re.compile(r"[0-9a-f]{64}\.parquet")


class StoredSession(NamedTuple):
    """A rewarded session: its object and the SHA-256 of that, and when its reward came, in seconds since 1970."""

    id: str
    group: str
    question: str
    rewarded: float
    key: str
    digest: str


def keep(storage: Storage, run: Run, weights: Weights, session: Trajectory) -> None:
    """Store a rewarded session that these weights answered. Raises StorageError."""
    write(storage, run.layout.sessions(weights.updates, weights.digest), storable(session))


def policies_since(storage: Storage, run: Run, updates: int) -> list[Weights]:
    """Return the policies of a run after `updates` updates and later, the newest first."""
    policies = dict[int, Weights]()
    for number in reversed(range(finished_iterations(storage.list(run.layout.iterations), run.layout))):
        record = read_record(storage, run, number)
        if record is None or record.updates < max(1, updates):
            break
        policies.setdefault(record.updates, record.policy)
    if not updates:
        policies[0] = Weights(digest=run.policy)
    return list(policies.values())


def stored_sessions(
    storage: Storage, run: Run, policies: Iterable[Weights], known: dict[str, StoredSession]
) -> list[StoredSession]:
    """Return the sessions that these policies answered, in the order of their rewards. `known` has those that were read before.

    One that is damaged is left out: it is as if it had not been recorded.
    """
    found = list[StoredSession]()
    for policy in policies:
        folder = run.layout.sessions(policy.updates, policy.digest)
        for key in storage.list(folder):
            name = key.removeprefix(f"{folder}/")
            if key not in known and SESSION.fullmatch(name):
                try:
                    known[key] = _read(storage, key, name.removesuffix(".parquet"))
                except (DamagedError, ValidationError, ValueError):
                    continue
            if key in known:
                found.append(known[key])
    return sorted(found, key=lambda each: (each.rewarded, each.key))


def _read(storage: Storage, key: str, digest: str) -> StoredSession:
    (session,) = from_table(storage.read_table(key, digest))
    return StoredSession(session.id, session.group, session.question, session.started_at + session.seconds, key, digest)


def complete_groups(sessions: Iterable[StoredSession], used: Collection[str], size: int) -> list[list[StoredSession]]:
    """Return groups of so many sessions that name the same group and are not used, those first that were complete first."""
    waiting, complete = defaultdict[str, list[StoredSession]](list), list[list[StoredSession]]()
    for session in sessions:
        if session.id in used:
            continue
        waiting[session.group].append(session)
        if len(waiting[session.group]) == size:
            complete.append(waiting.pop(session.group))
    return complete


def prompts_of(groups: Iterable[list[StoredSession]], round_: int, environment: str) -> pa.Table:
    """Return a prompt for each group, whose `reference` names the objects of its sessions."""
    rows = [
        {
            "id": f"{group[0].group}:{round_}:{number}",
            "question": group[0].question,
            "answers": [],
            "ability": ABILITY,
            "source": ABILITY,
            "rule": OUTCOME,
            "reference": json.dumps([{"id": each.id, "key": each.key, "digest": each.digest} for each in group]),
            "environment": environment,
        }
        for number, group in enumerate(groups)
    ]
    table = table_of(rows)
    return table.append_column("group", table["id"])


def ids_in(prompts: pa.Table) -> list[str]:
    """Return the ids of the sessions that prompts name."""
    return [each["id"] for reference in prompts["reference"].to_pylist() for each in json_value(reference)]


def as_round(storage: Storage, prompts: pa.Table, layout: RoundLayout, policy: str) -> pa.Table:
    """Copy the sessions that prompts name to where the trajectories of their round lie, as its groups; return their index.

    Raises DamagedError and MissingError where an object is not what the prompts were made of.
    """
    made = [
        _as_sample(from_table(storage.read_table(each["key"], each["digest"]))[0], prompt, sample)
        for prompt in prompts.select(["group", "reference", "environment"]).to_pylist()
        for sample, each in enumerate(json_value(prompt["reference"]))
    ]
    table = pa.concat_tables([storable(each) for each in made])
    return index_of(made, *write(storage, layout.chunks(policy), table))


def _as_sample(session: Trajectory, prompt: Mapping[str, str], sample: int) -> Trajectory:
    group = prompt["group"]
    changed = {"id": f"{group}-{sample}", "group": group, "sample": sample, "environment": prompt["environment"]}
    return session.model_copy(update=changed)


def used_after(before: pa.Table | None, prompts: pa.Table, iteration: int, span: int) -> pa.Table:
    """Return the sessions that were learned from, with those of these prompts: rows of RETIRED_SCHEMA, of the last `span`
    iterations.
    """
    rows = [] if before is None else [row for row in before.to_pylist() if row["iteration"] > iteration - span]
    rows += [{"id": name, "iteration": iteration} for name in ids_in(prompts)]
    return pa.Table.from_pylist(rows, schema=RETIRED_SCHEMA)


def span_of(lag: int, patience: int) -> int:
    """Return after how many iterations no session that was learned from is young enough to come again: each update may follow on
    as many iterations without one as `patience` allows.
    """
    return (lag + 2) * (patience + 1)
