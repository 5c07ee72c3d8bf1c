"""Says of a published run what is proved, what is only consistent with itself, and what is taken on trust."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.bundle.contents import STORAGE, WEIGHTS, FileList, check_files
from nbrl.tasks.bundle.signature import check_signature, is_signed
from nbrl.tasks.errors import BrokenInvariantError, ConfigError
from nbrl.tasks.layout.runs import JUDGEMENTS, RUNS
from nbrl.tasks.runs.history import Record

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
    check_files(folder, contents)
    mine = tuple(f"{STORAGE}/{place}/" for place in (f"{RUNS}/{contents.run}", JUDGEMENTS))
    foreign = [path for path in contents.files if path.startswith(f"{STORAGE}/") and not path.startswith(mine)]
    if foreign:
        raise ConfigError(f"{folder} holds {foreign[0]}, which is not of the run {contents.run!r} that it names")
    return Storage(StorageSettings(root=str(folder / STORAGE)))


def check_published_weights(folder: Path, contents: FileList, record: Record) -> bool:
    """Return whether there are whole weights. Raises BrokenInvariantError unless they are those of the run's last record."""
    names = [path.removeprefix(f"{WEIGHTS}/") for path in contents.files if path.startswith(f"{WEIGHTS}/")]
    if not names or "adapter_config.json" in names:
        return False
    digests = {f"hf/{name}": contents.files[f"{WEIGHTS}/{name}"].sha256 for name in names}
    if part_digest(digests, "hf/") != record.weights:
        raise BrokenInvariantError(f"{WEIGHTS}/ does not hold the weights after {record.updates} updates of the record")
    return True


def claims(
    folder: Path,
    contents: FileList,
    records: Sequence[Record],
    evaluations: int,
    signed_by: Path | None,
    replayed: int | None,
    weights: bool,
) -> Iterator[Claim]:
    """Yield what is said of a run that its audit did not contradict."""
    files = f"{len(contents.files)} files, root {contents.root[:16]}…"
    if signed_by is not None:
        yield Claim("who published it", "proved", f"{files}: signed by the owner of {signed_by.name}")
    else:
        signed = "its signature was not compared with a key: --signed-by" if is_signed(folder) else "it is not signed"
        yield Claim("who published it", "on trust", f"{files}; {signed}")
    updates = max(record.updates for record in records)
    yield Claim("files", "proved", "each has the digest that the list names, and the root is over all of them")
    yield Claim("prompts", "proved", f"those of {len(records)} iterations follow from the stored questions and the seed")
    yield Claim("rewards, selections, advantages", "proved", "computed again from the trajectories")
    yield Claim("updates", "consistent", f"each of {updates} names the trajectories, advantages and weights that made it")
    if replayed is not None:
        yield Claim(f"update of iteration {replayed}", "proved", "done again on this machine: the same weights, bit for bit")
    if weights:
        yield Claim("weights", "proved", f"those in {WEIGHTS}/ are the ones after {updates} updates")
    yield Claim("evaluations", "proved", f"the scores of {evaluations} are what their trajectories earn")
    yield Claim("trajectories", "on trust", "that the model sampled the tokens, and cells printed what they say: not run again")
    yield Claim("questions", "on trust", "where they come from, and that held-out ones were not trained on elsewhere")
    yield Claim("times and machines", "on trust", "seconds and processors are as recorded")
