"""What is personal does not go into a published run."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.tasks.bundle.personal import folders_in, impersonal, personal_in
from nbrl.tasks.runs.recipes import load

HOME = f"{Path.home()}/secret"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (HOME, True),
        (f"{Path.cwd()}/x", True),
        ("/Users/someone/x", True),
        ("/home/a/b in words", True),
        ("file:///home/a/x", True),
        ("gcc -I/home/a/include", True),
        ("C:\\Users\\a\\x", True),
        ("on gpu-node-17, rank 0", True),
        ("runs/r/home/x", False),
        ("see /etc/hosts", False),
        ("gpu-node-170", False),
        ("a vm", False),
    ],
)
def test_a_folder_of_a_user_is_found_wherever_it_was_recorded(tmp_path: Path, text: str, found: bool) -> None:
    table = pa.table({"nodes": [[{"text": f"it says {text}"}]], "number": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "b.json").write_text(json.dumps({"deep": [text]}))
    (tmp_path / "c.png").write_bytes(HOME.encode())
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights/config.json").write_text(json.dumps({"_name_or_path": text}))
    expected = ["a.parquet", "b.json", "weights/config.json"] if found else []
    assert [name for name, _ in personal_in(tmp_path, ["gpu-node-17", "vm"])] == expected


def test_a_common_folder_in_which_one_happens_to_be_is_nothing_personal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.json").write_text('"see /tmp/x"')
    monkeypatch.chdir("/tmp")
    assert list(personal_in(tmp_path, [])) == []


def test_settings_of_the_machine_are_at_their_defaults_and_the_model_is_a_name() -> None:
    overrides = [
        "home=/home/me/.nbrl",
        "tracking.uri=http://mlflow.lan:5000",
        "nodes.cache=/scratch/me",
        "ray.address=10.0.0.1:6379",
    ]
    text = impersonal(load("tiny-cpu", [*overrides, "storage.root=s3://my-bucket/x"])).model_dump_json()
    assert "/home/me" not in text
    for word in ("mlflow.lan", "/scratch/me", "10.0.0.1", "my-bucket", "/data/me"):
        assert word not in text
    assert json.loads(text)["policy"]["path"] == "tiny"


def test_a_setting_that_names_a_folder_is_found() -> None:
    settings = {"a": {"b": ["x", "/data/x"]}, "c": "C:\\x", "d": "~/x", "e": "/opt/program/a.py", "f": "a/b", "g": 1}
    assert dict(folders_in(settings)) == {"a.b": "/data/x", "c": "C:\\x"}
