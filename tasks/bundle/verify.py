"""Says of a published run what is proved, what is only consistent with itself, and what is taken on trust."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.sessions import Replayed
from nbrl.tasks.bundle.card import card
from nbrl.tasks.bundle.contents import CARD, CURVE, LOCK_FILES, LOCKS, PLAIN, STORAGE, WEIGHTS, FileList, Parts, check_files
from nbrl.tasks.bundle.signature import check_signature
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import JUDGEMENTS, RUNS
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run

BESIDE = (CARD, CURVE, *LOCK_FILES.values())  # the run, its weights and the list
OF_RUN, DATA = (".parquet", ".json"), "/data/"  # files of questions have names of their own
Certainty = Literal["proved", "consistent", "on trust"]


class Claim(NamedTuple):
    """What is said of a run, how certain it is, and why."""

    what: str
    certainty: Certainty
    why: str


def check_bundle(folder: Path, contents: FileList, signed_by: Path | None) -> Storage:
    """Return the storage of a published run, whose files are those that were listed, and signed by the owner of this key.

    Raises DamagedError and ConfigError.
    """
    if signed_by is not None:
        check_signature(folder, signed_by)
    mine = tuple(f"{STORAGE}/{place}/" for place in (f"{RUNS}/{contents.run}", JUDGEMENTS))
    foreign = [path for path in contents.files if path not in BESIDE and not path.startswith((*mine, f"{WEIGHTS}/"))]
    foreign += [path for path in contents.files if path.startswith(mine) and not path.endswith(OF_RUN) and DATA not in path]
    if foreign:
        raise ConfigError(f"{folder} holds {foreign[0]}, which is not of the run {contents.run!r} that it names")
    check_files(folder, contents)
    return Storage(StorageSettings(root=str(folder / STORAGE)))


def weights_in(contents: FileList) -> Parts:
    """Return what weights came along."""
    names = {path.removeprefix(f"{WEIGHTS}/") for path in contents.files if path.startswith(f"{WEIGHTS}/")}
    if not names:
        return "none"
    return "weights" if "config.json" in names else "adapters"


def check_rest(
    folder: Path, contents: FileList, run: Run, records: Sequence[Record], results: Sequence[NodeResult]
) -> Iterator[str]:
    """Yield the contradictions of what lies beside the run's own files: the list's number of updates, weights, and model card."""
    newest, parts = records[-1], weights_in(contents)
    for what, word in (("name", run.name), ("recipe", run.recipe), ("weights", newest.weights)):  # which the card quotes
        if not PLAIN.fullmatch(word):
            yield f"its {what} {word[:80]!r} is no plain word"
            return
    if contents.updates != max(record.updates for record in records):
        yield f"the list says that there were {contents.updates} updates, and the records say {newest.updates}"
    if parts == "weights":
        found = {path: each for path, each in contents.files.items() if path.startswith(f"{WEIGHTS}/")}
        digests = {f"hf/{path.removeprefix(f'{WEIGHTS}/')}": each.sha256 for path, each in found.items()}
        if part_digest(digests, "hf/") != newest.weights:
            yield f"{WEIGHTS}/ does not hold the weights after {newest.updates} updates of the record"
    if CARD not in contents.files or (folder / CARD).read_text(errors="replace") != card(run, records, results, parts):
        yield f"{CARD} is not the model card that the records give"


def claims(
    contents: FileList,
    config: RunConfig,
    signed: bool,
    signed_by: Path | None,
    records: Sequence[Record],
    evaluations: int,
    sessions: Replayed,
    replayed: int | None,
) -> Iterator[Claim]:
    """Yield what is said of a run that its audit did not contradict; `signed` says whether there is a signature."""
    files, updates, parts = f"{len(contents.files)} files, root {contents.root[:16]}…", contents.updates, weights_in(contents)
    live, stream, estimated = config.recorded is not None, config.pipeline.stream, config.learner_estimates
    if signed_by is not None:
        yield Claim("who published it", "proved", f"{files}: signed by the owner of {signed_by.name}")
    else:
        why = "its signature was not compared with a key: --signed-by" if signed else "it is not signed"
        yield Claim("who published it", "on trust", f"{files}; {why}")
    yield Claim("files", "proved", "each has the digest that the list names, and the root is over all of them")
    if not live:
        yield Claim("prompts", "proved", f"those of {len(records)} iterations follow from the stored questions and the seed")
    computed = "rewards, selections" if estimated else "rewards, selections, advantages"
    yield Claim(computed, "proved", "computed again from the trajectories")
    if evaluations:
        yield Claim("evaluations", "proved", f"the scores of {evaluations}, and those in {CARD}, are what their answers earn")
    if replayed is not None:
        yield Claim(f"update of iteration {replayed}", "proved", "done again on this machine: the same weights, bit for bit")
    yield Claim("updates", "consistent", f"each of {updates} names the trajectories, advantages and weights that made it")
    if parts == "weights":
        yield Claim("weights", "consistent", f"those in {WEIGHTS}/ are the ones that the last record names")
    elif parts == "adapters":
        yield Claim("adapters", "on trust", f"those in {WEIGHTS}/ are compared with nothing")
    if estimated:
        yield Claim("advantages", "on trust", "the learner estimated them: they are computed again only where an update is")
    yield from _outcomes_on_trust(config, live, sessions)
    if stream:
        yield Claim("order of a stream", "on trust", "which groups finished first: each is learned from once, or has expired")
    yield Claim("trajectories", "on trust", "that the model sampled the tokens, and cells printed what they say: not run again")
    yield Claim("completeness", "on trust", "that no later iteration, other evaluation or other run was left out")
    yield Claim("settings and versions", "on trust", f"that the run had its settings, nbrl {contents.version} and its commit")
    yield Claim("questions", "on trust", "where they come from, and that held-out ones were not trained on elsewhere")
    yield Claim("picture, lock files", "on trust", f"{CURVE} and {LOCKS}/ are compared with nothing")
    yield Claim("times and machines", "on trust", "seconds and processors are as recorded")


def _outcomes_on_trust(config: RunConfig, live: bool, sessions: Replayed) -> Iterator[Claim]:
    """Yield what the rewards are made of that no audit can compute again."""
    if config.reward.judge is not None:
        yield Claim("grades", "on trust", "that the judge gave the recorded ones, from which rewards are computed")
    if live:
        yield Claim("recorded sessions", "on trust", "which there were, and the rewards that agents elsewhere gave them")
    if unplayed := sessions.not_replayable + sessions.in_part:
        why = f"those of {unplayed} sessions of worlds, which cannot be played again, or were recorded in part"
        yield Claim("outcomes", "on trust", why)
