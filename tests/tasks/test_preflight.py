"""What can be known to fail is refused before work starts, and what a dry run cannot know it says."""

import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbrl.infra.gpu import available_mb
from nbrl.infra.process.child import free_port
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.source import PolicySettings, fetch
from nbrl.tasks.runs import preflight as module
from nbrl.tasks.runs.preflight import preflight, rehearse
from nbrl.tasks.runs.recipes import load


@pytest.fixture
def server() -> Iterator[str]:
    """Something that answers over HTTP."""
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("storage.shared=true ray.address=127.0.0.1:{port}", "no Ray cluster answers at"),
        ("storage.shared=true ray.address=ray://127.0.0.1:{port}", "no Ray cluster answers at"),
        ("ray.address=10.0.0.1:6379", "set storage.shared to true if all of them see it there"),
        ("tracking.tensorboard=s3://bucket/x", "is no folder of this machine"),
        ("tracking.tensorboard=/proc/none", "tracking.tensorboard: nothing can be written"),
        (
            "tracking.wandb.project=p tracking.wandb.mode=offline tracking.wandb.folder=s3://bucket/x",
            "tracking.wandb.folder 's3://bucket/x' is no folder",
        ),
        (
            "tracking.wandb.project=p tracking.wandb.mode=offline tracking.wandb.folder=/proc/none",
            "tracking.wandb.folder: nothing can be written",
        ),
        ("tracking.uri=foo", "is no tracking server or database"),
        ("home=/proc/x", "home: nothing can be written at /proc/x"),
        ("storage.root=/proc/x", "storage.root: nothing can be written at /proc/x"),
        ("home=/etc/hostname/x", "because of /etc/hostname"),
        ("engine.device=cuda", "no NVIDIA GPU is found"),
        ("update.workers=640", "update.workers is 640"),
        ("policy.path=./nowhere", "does not exist"),
        ("storage.shared=true ray.address=foo", "is no address of a cluster"),
        ("storage.shared=true ray.address=foo:bar", "is no address of a cluster"),
        ("tracking.uri=ftp://x", "is no tracking server or database"),
        ("tracking.uri=sqlite:////nowhere/at/all/x.db", "there is no folder /nowhere/at/all"),
        ("storage.root=http://nope", "neither a folder nor an address with s3://"),
        ('home="a\\0b"', "which no text may have"),
    ],
)
def test_what_cannot_work_here_is_one_sentence(override: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError) as error:
        preflight(load("tiny-cpu", override.format(port=free_port()).split()), "train")
    assert words in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.process
def test_what_answers_is_taken_whatever_the_proxy(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")  # nobody is there
    preflight(load("tiny-cpu", [f"ray.address={server}", "storage.shared=true", f"tracking.uri=http://{server}"]), "train")


@pytest.mark.process
def test_an_mlflow_that_does_not_answer_is_told_by_a_dry_run_and_stops_no_training() -> None:
    config = load("tiny-cpu", [f"tracking.uri=http://127.0.0.1:{free_port()}"])
    preflight(config, "train")
    with pytest.raises(ConfigError, match="no MLflow server answers at"):
        rehearse(config)


@pytest.mark.process
def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    config = load("tiny-cpu", [f"home={tmp_path}/a/b", f"storage.root={tmp_path}/c/d"])
    preflight(config, "train")
    assert rehearse(config) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
def test_workers_are_counted_against_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < available_mb() < 1 << 24
    monkeypatch.setattr(module, "available_mb", lambda: 900)
    with pytest.raises(ConfigError, match="they need 1000 MB of memory, and 900 MB are free"):
        preflight(load("tiny-cpu"), "train")
    preflight(load("tiny-cpu"), "evaluate")


@pytest.mark.more
@pytest.mark.process
def test_an_unknown_argument_of_the_engine_is_told_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match="unrecognized arguments: --no-such-flag"):
        rehearse(load("tiny-cpu", ["engine.extra_args={no-such-flag: x}"]))
    assert rehearse(load("tiny-cpu", ['engine.extra_args={mem-fraction-static: "0.3"}'])) == []


def test_numbers_among_the_engines_arguments_are_written_as_on_a_command_line() -> None:
    config = load("tiny-cpu", ["engine.extra_args={mem-fraction-static: 0.3, context-length: 4096}"])
    assert config.engine.extra_args == {"mem-fraction-static": "0.3", "context-length": "4096"}


@pytest.mark.parametrize("name", ["a--b/c", "a/b.git", "-a/b"])
def test_a_name_that_the_hub_cannot_have_is_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match="no local folder and the hub does not give it"):
        rehearse(load("tiny-cpu", [f"policy.path={name}"]))
    with pytest.raises(ConfigError, match="no local folder and the hub does not give it"):
        fetch(PolicySettings(path=name))


def test_what_could_not_be_checked_is_said(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")  # whatever the network, no hub answers
        said = "\n".join(
            rehearse(load("tiny-cpu", ["policy.path=owner/name", f"ray.address={server}", "tracking.uri=sqlite:////tmp/x.db"]))
        )
    assert "policy.path owner/name: the hub did not answer" in said
    assert "ray.address" in said
    assert "tracking.uri" in said


@pytest.mark.more
def test_a_bucket_that_cannot_be_written_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "y")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(ConfigError, match=r"storage\.root: cannot write s3://nope/\.probe"):
        rehearse(load("tiny-cpu", ["storage.root=s3://nope"]))


@pytest.mark.process
def test_tensorboard_files_need_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("tiny-cpu", [f"tracking.tensorboard={tmp_path / 'board'}"])
    preflight(config, "train")
    monkeypatch.setattr("nbrl.tasks.runs.preflight.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'nbrl\[tensorboard\]'"):
        preflight(config, "train")
    assert not (tmp_path / "board").exists()


@pytest.mark.process
def test_weights_and_biases_needs_its_package_and_a_key_unless_it_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NETRC", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    online = load("tiny-cpu", ["tracking.wandb={project: p, mode: online}"])
    with pytest.raises(ConfigError, match="there is no key: set WANDB_API_KEY, run `wandb login`, or set mode to offline"):
        preflight(online, "train")
    preflight(online, "evaluate")
    preflight(load("tiny-cpu", [f"tracking.wandb={{project: p, mode: offline, folder: {tmp_path / 'files'}}}"]), "train")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    preflight(online, "train")
    monkeypatch.setattr("nbrl.tasks.runs.preflight.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'nbrl\[wandb\]'"):
        preflight(online, "train")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("mode: online", "project"),
        ("project: p", "mode"),
        ("project: a/b, mode: online", "project"),
        ("project: p, mode: offline", "folder is not set; set folder, or mode to online"),
        ("project: p, mode: online, folder: x", "tracking.wandb.folder has no effect where tracking.wandb.mode is online"),
    ],
)
def test_settings_of_weights_and_biases_that_cannot_act_are_refused(settings: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load("tiny-cpu", [f"tracking.wandb={{{settings}}}"])
