"""Weights that are not what their headers, or their index, say."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.model_folder.check import check_model


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])


def no_tensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"<html>not found</html>")


def legacy(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def none(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def integers(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, folder / "model.safetensors")


def shards(folder: Path) -> dict[str, str]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(weights)}
    for place in set(places.values()):
        save_file({name: weights[name] for name in places if places[name] == place}, folder / place)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return places


def lost_file(folder: Path) -> None:
    shards(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def elsewhere(path: str) -> Callable[[Path], None]:
    """Let the index name the same weights by a path that leaves the folder."""

    def spoil(folder: Path) -> None:
        places = shards(folder)
        names = {name: path.format(folder=folder, name=place) for name, place in places.items()}
        (folder / "deep").mkdir()
        (folder / "deep/x.safetensors").symlink_to(folder / places[min(places)])
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))

    return spoil


def lost_tensor(folder: Path) -> None:
    places = shards(folder) | {"more": "model-00001-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def header(**info: Any) -> Callable[[Path], None]:
    """Make the file's header say something else of the first tensor, and nothing of keys that are None."""

    def spoil(folder: Path) -> None:
        path = folder / "model.safetensors"
        content = path.read_bytes()
        size = int.from_bytes(content[:8], "little")
        found = json.loads(content[8 : 8 + size])
        name = min(found.keys() - {"__metadata__"}, key=lambda key: found[key]["data_offsets"])
        found[name] = {key: value for key, value in (found[name] | info).items() if value is not None}
        rewrite(folder, json.dumps(found))

    return spoil


def rewrite(folder: Path, text: str) -> None:
    content = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(content[:8], "little")
    new = len(text).to_bytes(8, "little") + text.encode()
    (folder / "model.safetensors").write_bytes(new + content[8 + size :])


def index(text: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        shards(folder)
        (folder / "model.safetensors.index.json").write_text(text)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (header(shape=[3, 3]), "by its shape 0 to 36"),
        (header(data_offsets=[4, 8]), "at bytes 4 to 8, by its shape"),
        (header(data_offsets=None), "is not a safetensors file: .*data_offsets: Field required"),
        (header(shape=["a"]), "is not a safetensors file: .*shape"),
        (lambda folder: rewrite(folder, "[]"), "is not a safetensors file"),
        (lambda folder: rewrite(folder, "5"), "is not a safetensors file"),
        (index("[]"), r"index\.json is not as it should be"),
        (index('{"weight_map": []}'), r"index\.json is not as it should be: weight_map"),
        (index('{"weight_map": {"a": 1}}'), r"index\.json is not as it should be: weight_map.a"),
        (index("{}"), r"index\.json is not as it should be: weight_map"),
        (cut, "bytes long, not"),
        (no_tensors, "is not a safetensors file"),
        (legacy, "save_pretrained"),
        (none, "holds no weights"),
        (integers, "holds I8 weights"),
        (lost_file, "lacks model-00002-of-00002.safetensors"),
        (lost_tensor, "lacks more"),
        (elsewhere("../{folder.name}/{name}"), r"lacks \.\./model/model-.*, which its index names"),
        (elsewhere("{folder}/{name}"), r"lacks /.*, which its index names"),
        (elsewhere("deep/x.safetensors"), r"lacks deep/x\.safetensors, which its index names"),
        (elsewhere(".."), r"lacks \.\., which its index names"),
    ],
)
def test_weights_that_are_not_whole_are_refused(folder: Path, spoil: Callable[[Path], None], words: str) -> None:
    spoil(folder)
    with pytest.raises(UpdateError, match=words) as caught:
        check_model(str(folder))
    assert "\n" not in str(caught.value)


def test_sharded_weights_are_taken(folder: Path) -> None:
    shards(folder)
    check_model(str(folder))
