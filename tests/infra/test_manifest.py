"""A folder whose files are not what was written there is seen before it is used."""

import json
import random
import shutil
from pathlib import Path

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import MANIFEST, check_folder, part_digest, read_manifest, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    for name in ("hf/model.safetensors", "state/0.distcp", "result.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(random.Random(name).randbytes(4000))
    write_manifest(folder)
    return folder


def _manifest(folder: Path) -> dict[str, str]:
    return read_manifest((folder / MANIFEST).read_bytes(), str(folder))


@pytest.mark.parametrize("name", ["hf/model.safetensors", "hf/extra.json", "state", "."])
@pytest.mark.attack(
    tried="Links in a checkpoint, which is opened in place",
    wall="the folder is looked through before it is used",
    effect="one sentence",
)
def test_a_link_in_a_folder_is_refused_whatever_it_holds(folder: Path, tmp_path: Path, name: str) -> None:
    moved = tmp_path / "moved"
    if (place := folder / name).exists():
        shutil.move(folder if name == "." else place, moved)
    else:
        moved.write_text("{}")
    (folder if name == "." else place).symlink_to(moved)
    with pytest.raises(DamagedError, match="is a link, and none is followed there"):
        check_folder(folder)


def test_what_was_written_is_accepted_and_names_every_file(folder: Path) -> None:
    check_folder(folder)
    assert sorted(json.loads((folder / MANIFEST).read_bytes())) == ["hf/model.safetensors", "result.json", "state/0.distcp"]


def test_no_flip_of_a_bit_passes(folder: Path) -> None:
    draw = random.Random(0)
    for _ in range(300):
        path = folder / draw.choice(["hf/model.safetensors", "state/0.distcp", "result.json"])
        data = bytearray(path.read_bytes())
        place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        data[place] ^= bit
        path.write_bytes(data)
        with pytest.raises(DamagedError, match=f"{path.name} is damaged"):
            check_folder(folder)
        data[place] ^= bit
        path.write_bytes(data)
    check_folder(folder)


def test_a_part_is_told_by_its_own_files_alone_wherever_it_is(folder: Path, tmp_path: Path) -> None:
    before = part_digest(_manifest(folder), "hf/")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "result.json").write_bytes(b"other")
    write_manifest(copy)
    assert part_digest(_manifest(copy), "hf/") == before
    (copy / "hf/model.safetensors").write_bytes(b"other")
    write_manifest(copy)
    assert part_digest(_manifest(copy), "hf/") != before


def test_a_file_that_is_gone_is_named(folder: Path) -> None:
    (folder / "state/0.distcp").unlink()
    with pytest.raises(DamagedError, match=r"0\.distcp is gone"):
        check_folder(folder)
    check_folder(folder, "hf/")  # of what is asked for all is there


NAMES_ELSEWHERE = ("../a", "/etc/a", "a/../../b", "")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', *(f'{{"{name}": "0"}}' for name in NAMES_ELSEWHERE)])
def test_a_manifest_that_is_none_is_one_sentence(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    with pytest.raises(DamagedError, match="is no manifest"):
        check_folder(folder)
