"""A champion is known from the storage alone, and its files stay."""

import json
from pathlib import Path

import pytest

from nbrl.infra.manifest import MANIFEST, write_manifest
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import champion_of
from nbrl.tasks.runs.config import CheckpointSettings
from nbrl.tasks.runs.history import Record, read_record
from nbrl.tasks.runs.pins import champion, weights_digest
from nbrl.tasks.runs.retention import complete, prune
from nbrl.tasks.tracking.promote import former_of, promote
from tests.tasks.synced import RUN, begun, evaluated, iteration

EPOCH = "e0001-abcdef"
KEEP_ONE = CheckpointSettings(keep_last=1, keep_best=0)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return begun(tmp_path)


def made(storage: Storage, count: int) -> list[Record]:
    """A run of whole checkpoints."""
    storage.create_json(RUN.layout.identity, RUN.model_dump(mode="json"))
    for number in range(count):
        iteration(storage, number)
        folder = RUN.layout.checkpoint(number + 1, EPOCH)
        local = storage.local_path(folder)
        assert local
        write_manifest(local)
        key = RUN.layout.iteration(number).record
        record = Record.model_validate(storage.read_json(key)).model_copy(update={"weights": weights_digest(storage, folder)})
        storage.write_json(key, record.model_dump(mode="json"))
        evaluated(storage, record.policy)
    return [record for number in range(count) if (record := read_record(storage, RUN, number))]


def test_a_champion_stays_until_two_others_were_promoted(storage: Storage) -> None:
    records = made(storage, 3)
    assert promote(storage, "r", 1) == champion(storage, "tiny")
    prune(storage, RUN, records[:2], {}, KEEP_ONE)
    assert complete(storage, RUN) == {record.checkpoint for record in records}
    assert champion(storage, "tiny").updates == 1
    assert promote(storage, "r", 2).updates == 2
    prune(storage, RUN, records, {}, KEEP_ONE)
    assert complete(storage, RUN) == {record.checkpoint for record in records}
    assert promote(storage, "r", None).updates == 3
    prune(storage, RUN, records, {}, KEEP_ONE)
    assert complete(storage, RUN) == {records[1].checkpoint, records[2].checkpoint}


def test_the_champion_before_the_last_promotion_can_be_promoted_again(storage: Storage) -> None:
    made(storage, 2)
    promote(storage, "r", 1)
    with pytest.raises(ConfigError, match="had no champion before run r after 1 updates"):
        former_of(storage, "tiny")
    promote(storage, "r", 2)
    promote(storage, "r", 2)  # once more changes nothing of what was before
    assert former_of(storage, "tiny") == ("r", 1)
    promote(storage, *former_of(storage, "tiny"))
    assert champion(storage, "tiny").updates == 1
    assert former_of(storage, "tiny") == ("r", 2)


@pytest.mark.parametrize("elsewhere", ["runs/other/checkpoints/000001-e0001-abcdef", "runs/r/../other", "/etc", "data"])
@pytest.mark.attack(
    tried="Name what lies outside the run as its champion",
    wall="keys of a run lie below its folder",
    effect="one sentence",
)
def test_a_champion_that_lies_outside_its_run_is_none(storage: Storage, elsewhere: str) -> None:
    made(storage, 1)
    found = promote(storage, "r", 1)
    storage.write_json(champion_of("tiny"), found.model_dump(mode="json") | {"checkpoint": elsewhere})
    with pytest.raises(ConfigError, match="names no champion; `nbrl promote RUN` writes it again"):
        champion(storage, "tiny")


def test_a_checkpoint_that_is_not_whole_is_refused_and_nothing_is_written(storage: Storage) -> None:
    records = made(storage, 3)
    storage.write_bytes(f"{records[0].checkpoint}/hf/model.safetensors", b"other")
    storage.delete(f"{records[1].checkpoint}/{MANIFEST}")
    for updates, words in ((1, "is damaged"), (2, "does not exist"), (7, "has checkpoints 1 to 3")):
        with pytest.raises(ConfigError, match=words) as refused:
            promote(storage, "r", updates)
        assert "\n" not in str(refused.value)
    folder = storage.local_path(records[2].checkpoint)
    assert folder
    (folder / "hf" / "model.safetensors").write_bytes(b"of another update")
    write_manifest(folder)
    with pytest.raises(ConfigError, match="other weights than the update made"):
        promote(storage, "r", 3)
    assert not storage.exists(champion_of("tiny"))


def test_a_champion_whose_files_are_gone_is_an_error_in_one_sentence(storage: Storage) -> None:
    with pytest.raises(ConfigError, match="has no champion"):
        champion(storage, "tiny")
    records = made(storage, 2)
    promote(storage, "r", 1)
    with pytest.raises(ConfigError, match="did you mean 'tiny'"):
        champion(storage, "tini")
    storage.delete(f"{records[0].checkpoint}/hf/model.safetensors")
    with pytest.raises(ConfigError, match="is gone; bring the files back") as gone:
        champion(storage, "tiny")
    assert "\n" not in str(gone.value)
    storage.write_bytes(f"{records[0].checkpoint}/{MANIFEST}", json.dumps({"hf/x": "0" * 64}).encode())
    storage.write_bytes(f"{records[0].checkpoint}/hf/x", b"x")
    with pytest.raises(ConfigError, match="holds other weights"):
        champion(storage, "tiny")


def test_while_a_champion_cannot_be_told_nothing_is_deleted(storage: Storage, tmp_path: Path) -> None:
    records = made(storage, 2)
    storage.write_bytes(champion_of("other"), b"{")
    prune(storage, RUN, records, {}, KEEP_ONE)
    assert len(complete(storage, RUN)) == 2
