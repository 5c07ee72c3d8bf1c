"""Checkpoints on a cloud, made and read by ranks that share no disk."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from nbrl.infra.errors import DamagedCheckpointError
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings
from tests.clouds import FolderCloud, s3_server
from tests.tasks.learner import update_lab

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("alone")]


@pytest.fixture(autouse=True)
def variables(tmp_path: Path) -> None:
    (tmp_path / "variables.json").write_text("{}")


def order_on(storage: Storage, folder: Path, number: int) -> UpdateOrder:
    """An order whose tables lie on the storage; it goes on from the order before it."""
    made = update_lab.write_order(folder / f"order{number}", update_lab.make_trajectories(number, 7), "out", iteration=number)
    for name in ("trajectories", "advantages"):
        if not storage.exists(f"{number}/{name}.parquet"):
            storage.write_bytes(f"{number}/{name}.parquet", (folder / f"order{number}/{name}.parquet").read_bytes())
    before = f"checkpoints/{number - 1}" if number else None
    # On one disk states come with the checkpoint, on a cloud later: the same must come of it.
    places = {"checkpoint_in": before, "checkpoint_out": f"checkpoints/{number}"}
    places["state"] = "awaited" if storage.is_local and not isinstance(storage, FolderCloud) else "later"
    tables = {"trajectories": [StoredTable(key=f"{number}/trajectories.parquet")]}
    return made.model_copy(update={**places, **tables, "advantages": StoredTable(key=f"{number}/advantages.parquet")})


def learn(storage: Storage, policy: Path, folder: Path, numbers: list[int], together: bool = False) -> list[str]:
    """Carry out orders as a rank on a machine of its own, or with the others on one; the digests of the orders."""
    os.environ.update(json.loads((folder.parent / "variables.json").read_text()))
    machine = NodeSettings(cache=str(folder / f"machine-{0 if together else dist.get_rank()}"))
    settings = UpdateSettings(workers=dist.get_world_size(), lr=1e-3, deterministic=True)
    learner = Learner(settings, Places(PlacedFolder(str(policy)), storage, machine), torch.device("cpu"))
    made = [learner.execute(order_on(storage, folder, number)).order for number in numbers]
    learner.settle()
    return made


def weights(storage: Storage, checkpoint: str, folder: Path) -> dict[str, torch.Tensor]:
    storage.download_folder(checkpoint, folder)
    return update_lab.weights(str(folder))


def compared(cloud: Storage, policy: Path, folder: Path) -> None:
    """Two machines learn what two ranks on one folder learn; then one machine, which has nothing yet, goes on with
    both ranks.
    """
    together = Storage(StorageSettings(root=str(folder / "together")))
    for storage in (cloud, together):
        for number in range(3):
            order_on(storage, folder, number)
    first, _ = update_lab.on_ranks(2, learn, together, policy, folder / "a", [0, 1])
    assert update_lab.on_ranks(2, learn, cloud, policy, folder / "b", [0, 1])[0] == first
    ours = weights(cloud, "checkpoints/1", folder / "ours")
    theirs = update_lab.weights(str(folder / "together/checkpoints/1"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    manifest = cloud.read_manifest("checkpoints/1")
    assert {"result.json", "logprobs.parquet", "state/.metadata", "state/__0_0.distcp", "state/__1_0.distcp"} < set(manifest)
    assert not list(folder.glob("b/machine-*/scratch/*"))
    update_lab.on_ranks(2, learn, cloud, policy, folder / "c", [2], True)
    update_lab.on_ranks(2, learn, together, policy, folder / "d", [2])
    ours = weights(cloud, "checkpoints/2", folder / "ours")
    theirs = update_lab.weights(str(folder / "together/checkpoints/2"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.more
def test_machines_without_a_common_disk_learn_what_one_learns(policy: Path, tmp_path: Path) -> None:
    compared(FolderCloud(StorageSettings(root=str(tmp_path / "cloud"))), policy, tmp_path)


@pytest.mark.more
def test_they_do_so_over_s3(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        (tmp_path / "variables.json").write_text(json.dumps(variables))
        compared(Storage(StorageSettings(root="s3://bucket/x")), policy, tmp_path)


@pytest.mark.more
def test_an_order_that_was_carried_out_is_not_again_and_one_with_a_hole_is(policy: Path, tmp_path: Path) -> None:
    cloud = FolderCloud(StorageSettings(root=str(tmp_path / "cloud")))
    update_lab.on_ranks(1, learn, cloud, policy, tmp_path / "a", [0])
    shard = tmp_path / "cloud/checkpoints/0/state/__0_0.distcp"
    made = shard.stat().st_mtime_ns
    update_lab.on_ranks(1, learn, cloud, policy, tmp_path / "b", [0])
    assert shard.stat().st_mtime_ns == made
    shard.unlink()
    update_lab.on_ranks(1, learn, cloud, policy, tmp_path / "c", [0])
    assert shard.exists()


def damaged(storage: Storage, policy: Path, folder: Path) -> str:
    try:
        learn(storage, policy, folder, [1])
    except DamagedCheckpointError as error:
        return str(error)
    return ""


@pytest.mark.more
def test_a_damaged_state_is_told_where_it_is_read(policy: Path, tmp_path: Path) -> None:
    cloud = FolderCloud(StorageSettings(root=str(tmp_path / "cloud")))
    update_lab.on_ranks(1, learn, cloud, policy, tmp_path / "a", [0])
    (tmp_path / "cloud/checkpoints/0/state/__0_0.distcp").write_bytes(b"x")
    said = update_lab.on_ranks(1, damaged, cloud, policy, tmp_path / "b")
    assert "state/__0_0.distcp is not what its manifest says; bring it back from a copy" in said
