"""A folder whose files are not what was written there is seen before it is used."""

import json
import random
from pathlib import Path

import pytest

from nbrl.infra.errors import DamagedError
from nbrl.infra.manifest import MANIFEST, check_folder, write_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("hf/model.safetensors", "state/0.distcp", "result.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(random.Random(name).randbytes(4000))
    write_manifest(tmp_path)
    return tmp_path


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
