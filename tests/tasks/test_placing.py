"""The initial model, where every machine of a cluster finds it."""

import stat
from pathlib import Path

from nbrl.infra.node_cache import NodeCache, NodeSettings
from nbrl.infra.storage import StorageSettings
from nbrl.tasks.model_folder.source import content_digest
from nbrl.tasks.services.services import place
from tests.clouds import FolderCloud

TINY = Path(__file__).parents[2] / "infra/policies/tiny"


def test_on_one_machine_the_model_stays_where_it_is(tmp_path: Path) -> None:
    cloud = FolderCloud(StorageSettings(root=str(tmp_path / "cloud")))
    placed = place(TINY, cloud, cluster=False)
    assert placed.whole.lease(NodeCache(NodeSettings())).path == TINY
    assert cloud.list() == []


def test_in_a_cluster_it_is_stored_once_and_its_tokenizer_without_the_weights(tmp_path: Path) -> None:
    cloud = FolderCloud(StorageSettings(root=str(tmp_path / "cloud")))
    model = tmp_path / "model"
    model.mkdir()
    for path in TINY.iterdir():
        (model / path.name).symlink_to(path.resolve())  # as in the hub's cache
    (model / "notes.txt").write_text("no part of the model")
    before = sorted(path.name for path in model.iterdir())
    placed = place(model, cloud, cluster=True)
    stored = cloud.list()
    cache = NodeCache(NodeSettings(cache=str(tmp_path / "cache")))
    with placed.whole.lease(cache) as whole, placed.texts.lease(cache) as texts:
        (whole.path / "manifest.json").unlink()
        assert content_digest(whole.path) == content_digest(TINY)
        assert not list(texts.path.glob("*.safetensors"))
        assert (texts.path / "tokenizer.json").read_bytes() == (TINY / "tokenizer.json").read_bytes()
        assert not (whole.path / "notes.txt").exists()
    again = place(TINY, cloud, cluster=True)
    assert (again.whole.place, again.texts.place) == (placed.whole.place, placed.texts.place)
    assert cloud.list() == stored
    assert sorted(path.name for path in model.iterdir()) == before
    assert all(stat.S_ISREG((tmp_path / "cloud" / key).lstat().st_mode) for key in stored)
