"""What killed measurements left is deleted; one that another process works on stays."""

import time
from pathlib import Path

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs import measured
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.lease import Lease


def _measurement(settings: StorageSettings, alive: bool) -> str:
    folder = measured.new_folder()
    inside, layout = Storage(measured.inside(settings, folder)), RunLayout(measured.RUN)
    lease = Lease(epoch=take(inside, layout), beat=time.time() - (0 if alive else 3600))
    if not alive:
        lease = lease.model_copy(update={"epoch": lease.epoch.model_copy(update={"process": "elsewhere/boot/pid:[1]/1/2"})})
    inside.write_json(layout.lease, lease.model_dump())
    inside.write_json("runs/measured/iterations/0/record.json", {})
    return folder


def test_only_what_killed_measurements_left_is_deleted(tmp_path: Path) -> None:
    settings = StorageSettings(root=str(tmp_path))
    storage = Storage(settings)
    dead, alive = _measurement(settings, alive=False), _measurement(settings, alive=True)
    begins = measured.new_folder()  # it has no lease yet
    storage.write_json(f"{begins}/runs/measured/run.json", {})
    storage.write_json("runs/mine/run.json", {})
    measured.delete_abandoned(settings)
    assert storage.list(dead) == []
    assert storage.list(alive)
    assert storage.list(begins)
    assert storage.exists("runs/mine/run.json")
    measured.delete_abandoned(StorageSettings(root=str(tmp_path / "nothing")))
