import json
import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from nbrl.infra.engine.command import Member, command, environment, last_gpus, vocabulary_size
from nbrl.infra.engine.server import launch
from nbrl.infra.engine.settings import EngineSettings, new_key
from nbrl.infra.errors import EngineError


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.infra.engine.settings.gpus", lambda: 0)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 99}))
    return tmp_path


def line(settings: EngineSettings, model: Path) -> str:
    return " ".join(command(settings, model, 20000, 5)) + " "


def test_every_setting_reaches_the_command_line(model: Path) -> None:
    settings = EngineSettings(
        device="cpu",
        max_total_tokens=4096,
        max_running_requests=7,
        seeded_sampling=True,
        extra_args={"schedule-policy": "fcfs", "enable-metrics": ""},
    )
    text = line(settings, model)
    for part in (
        f"--model-path {model} ",
        "--port 20000 ",
        "--random-seed 5 ",
        "--max-total-tokens 4096 ",
        "--max-running-requests 7 ",
        "--enable-deterministic-inference ",
        "--schedule-policy fcfs ",
        "--enable-metrics ",
        "--device cpu ",
        "--dtype float32 ",
        "--sleep-on-idle ",
        "--host 127.0.0.1 ",
    ):
        assert part in text


def test_on_gpus(model: Path) -> None:
    settings = EngineSettings(device="cuda", tensor_parallel=2, dtype="bfloat16", count=2)
    text = line(settings, model)
    assert "/launch_gpu.py " in text
    assert "--device cuda --dtype bfloat16 " in text
    assert "--tp-size 2 " in text
    assert "--nnodes" not in text
    assert "torch_native" not in text
    assert [last_gpus(index, 2, "4,5,6,7") for index in range(2)] == ["6,7", "4,5"]
    variables = environment(settings, model, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}, "4,5")
    assert variables["CUDA_VISIBLE_DEVICES"] == "4,5"
    assert "SGLANG_USE_CPU_ENGINE" not in variables


def test_on_gpus_it_compiles_with_the_toolkit_of_its_environment(tmp_path: Path, model: Path) -> None:
    toolkit = tmp_path / "lib/python3.11/site-packages/nvidia/cu13"
    toolkit.mkdir(parents=True)
    settings = EngineSettings(device="cuda", environment=str(tmp_path))
    variables = environment(settings, model, {"PATH": "/usr/bin"})
    assert (variables["CUDA_HOME"], variables["PATH"]) == (str(toolkit), f"{tmp_path}/bin:/usr/bin")
    assert environment(settings, model, {"CUDA_HOME": "/usr/local/cuda"})["CUDA_HOME"] == "/usr/local/cuda"


def test_of_an_engine_on_two_machines_each_starts_its_half(model: Path) -> None:
    settings = EngineSettings(device="cuda", tensor_parallel=8, machines=2)
    text = " ".join(command(settings, model, 30000, seed=3, member=Member(1, "10.0.0.1:999")))
    for part in ("--tp-size 8 ", "--nnodes 2 ", "--node-rank 1 ", "--dist-init-addr 10.0.0.1:999 "):
        assert part in text
    assert settings.gpus_per_machine == 4


def test_an_engine_on_several_machines_does_not_start_alone(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.machines is 2, and this is one machine"):
        launch(EngineSettings(device="cpu", tensor_parallel=2, machines=2), model, tmp_path)


def test_environment_on_cpu(model: Path) -> None:
    base = {"PATH": "/bin", "PYTHONPATH": "/somewhere", "PYTHONDONTWRITEBYTECODE": "1"}
    variables = environment(EngineSettings(device="cpu", threads=2), model, base)
    assert variables["OMP_NUM_THREADS"] == "2"
    assert variables["PATH"] == "/bin"
    assert variables["SGLANG_RETURN_ORIGINAL_LOGPROB"] == "1"
    assert not {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"} & set(variables)
    assert base["PYTHONPATH"] == "/somewhere"


def test_only_the_models_that_are_needed_are_imported(model: Path) -> None:
    settings = EngineSettings(device="cpu")
    left_out = environment(settings, model, {})["SGLANG_DISABLED_MODEL_ARCHS"].split(",")
    assert "qwen3" not in left_out
    assert "llama" in left_out
    (model / "config.json").write_text(json.dumps({"architectures": ["NobodyForCausalLM"], "vocab_size": 9}))
    assert environment(settings, model, {})["SGLANG_DISABLED_MODEL_ARCHS"] == ""


@pytest.mark.parametrize(
    "config", ["[]", "5", '{"architectures": 5}', '{"architectures": [5]}', '{"vocab_size": []}', "[" * 100_000, "{}", None]
)
@pytest.mark.attack(
    tried="A model whose config.json is a pipe, or of another form, to be served",
    wall="what is no regular file is not read; the form of the rest is checked",
    effect="one sentence",
)
def test_a_model_of_another_form_is_refused(model: Path, config: str | None) -> None:
    (model / "config.json").unlink()
    os.mkfifo(model / "config.json") if config is None else (model / "config.json").write_text(config)
    with pytest.raises(EngineError, match=r"holds no readable config\.json|config\.json has no vocab_size"):
        vocabulary_size(model)
    if config != "{}" and "vocab" not in str(config):
        with pytest.raises(EngineError, match=r"holds no readable config\.json"):
            environment(EngineSettings(device="cpu"), model, {})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device": "cpu", "tensor_parallel": 2}, "must be equal to machines"),
        ({"device": "cuda", "tensor_parallel": 4, "machines": 3}, "does not divide tensor_parallel"),
        ({"extra_args": {"host=0.0.0.0": ""}}, "which is no name of a flag"),
        ({"extra_args": {"x.corpus": "1"}}, "which is no name of a flag"),
        ({"device": "cpu", "dtype": "float16"}, "float32 or bfloat16"),
        ({"extra_args": {"port": "1"}}, "cannot set port"),
        ({"count": 0}, "greater than or equal to 1"),
        ({"treads": 1}, "Extra inputs are not permitted"),
        ({"port": 80}, "greater than or equal to 1024"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EngineSettings(**settings)


def test_vocabulary(model: Path) -> None:
    assert vocabulary_size(model) == 99
    with pytest.raises(EngineError, match=r"no readable config\.json"):
        vocabulary_size(model / "nowhere")


def test_no_key_begins_like_an_option() -> None:
    assert all(key.isalnum() and len(key) == 64 for key in [new_key() for _ in range(100)])
