"""Makes SGLang's command line and environment from the settings and the model."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nbrl.infra.engine.client import ADAPTER
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.gpu import gpus

ENGINE_CODE = Path(__file__).parent / "environment"
LAUNCHERS = {"cpu": ENGINE_CODE / "launch.py", "cuda": ENGINE_CODE / "launch_gpu.py"}
CPU_TOTAL_TOKENS = 65536  # of KV cache: 0.13 GB for the tiny policy


@dataclass(frozen=True)
class AdapterRoom:
    """The space that an engine reserves for a LoRA adapter: its rank, and the names of its layers."""

    rank: int
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Door:
    """How an engine serves others than ourselves: text too, under a name, at an address.

    `keys` is a file of SGLang's configuration in YAML, with the keys that requests must bring.
    """

    name: str
    host: str
    keys: Path


def command(
    settings: EngineSettings,
    model_path: Path,
    port: int,
    seed: int,
    room: AdapterRoom | None = None,
    version: str = "initial",
    adapter: Path | None = None,
    door: Door | None = None,
) -> list[str]:
    """The launch line; the server's weights are called `version`.

    Without a `door`, tokens go in and out as ids, so that the server never loads a tokenizer.

    With an `adapter` the server has it, as ADAPTER, before it takes the first request.
    """
    flags: dict[str, str] = {
        "model-path": str(model_path),
        "host": door.host if door else "127.0.0.1",
        "port": str(port),
        "random-seed": str(seed),
        "max-running-requests": str(settings.max_running_requests),
        "log-level-http": "warning",
        "skip-server-warmup": "",  # `server.wait` sends the first request
        "weight-version": version,
    }
    if door is None:
        flags["skip-tokenizer-init"] = ""
    else:
        flags |= {"served-model-name": door.name, "config": str(door.keys)}
    if settings.max_total_tokens is not None:
        flags["max-total-tokens"] = str(settings.max_total_tokens)
    if settings.seeded_sampling:
        flags["enable-deterministic-inference"] = ""
    if settings.resolved_device == "cpu":
        flags |= {
            "device": "cpu",
            "dtype": "float32" if settings.computes_in_float32 else settings.dtype,
            "attention-backend": "torch_native",
            "sampling-backend": "pytorch",
            "disable-cuda-graph": "",
            "disable-overlap-schedule": "",
            "sleep-on-idle": "",  # else an idle scheduler burns nine tenths of a core
        }
        flags.setdefault("max-total-tokens", str(CPU_TOTAL_TOKENS))
    else:
        flags |= {"device": "cuda", "dtype": settings.dtype, "tp-size": str(settings.tensor_parallel)}
    if room is not None:
        # Of a batch one adapter, and requests without one.
        flags |= {"enable-lora": "", "max-lora-rank": str(room.rank), "max-loras-per-batch": "2"}
        if settings.resolved_device == "cpu":
            flags["lora-backend"] = "torch_native"
    flags |= settings.extra_args
    line = [str(settings.python), str(LAUNCHERS[settings.resolved_device])]
    for name, value in flags.items():
        line += [f"--{name}", value] if value else [f"--{name}"]
    line += ["--lora-target-modules", *room.modules] if room else []
    return line + (["--lora-paths", f"{ADAPTER}={adapter}"] if adapter else [])


def environment(settings: EngineSettings, model_path: Path, base: dict[str, str], gpu: int | None) -> dict[str, str]:
    """The engine's variables on top of `base`. `gpu`: how many GPUs the engines before this one took, None on CPU.

    Engines take GPUs from the last on, since Ray gives the learner the first: they share one only where there are too few.
    """
    variables = dict(base)
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE"):
        variables.pop(name, None)  # the engine has its own environment; without byte code its imports take half as long again
    variables |= {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(settings.threads),
        # Log-probs of the raw logits (temperature 1), which is what the trainer computes, whatever the sampling temperature.
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "1",
        "SGLANG_DISABLED_MODEL_ARCHS": ",".join(_other_architectures(settings, model_path)),
    }
    if settings.resolved_device == "cpu":
        variables |= {
            "SGLANG_USE_CPU_ENGINE": "1",
            "SGLANG_CPU_OMP_THREADS_BIND": "0",
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_DISABLE": "1",  # seeded sampling would be compiled in C++ at first use
        }
    else:
        # Compiled kernels outlive an engine; its temporary files, among which torch would keep them, do not.
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path.home() / ".cache/nbrl/inductor"))
    if gpu is not None:
        named = base.get("CUDA_VISIBLE_DEVICES")
        visible = [str(i) for i in range(gpus())] if named is None else named.split(",")
        end = len(visible) - gpu
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible[max(0, end - settings.tensor_parallel) : end])
    return variables


def vocabulary_size(model_path: Path) -> int:
    return int(_model_config(model_path)["vocab_size"])


def _model_config(model_path: Path) -> dict:
    try:
        config: dict = json.loads((model_path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"{model_path} holds no readable config.json: give a folder in Hugging Face format") from error
    return config


@cache
def _model_sources(package: Path) -> dict[str, str]:
    return {path.stem: path.read_text(errors="replace") for path in package.glob("*.py")}


def _other_architectures(settings: EngineSettings, model_path: Path) -> list[str]:
    """SGLang's model files that do not speak of this model's class: importing all 200 of them costs seconds at every start."""
    names = _model_config(model_path).get("architectures") or []
    packages = list(settings.folder.glob("lib/python3*/site-packages/sglang/srt/models"))
    if not names or not packages:
        return []
    sources = _model_sources(packages[0])
    needed = {stem for stem, text in sources.items() if any(name in text for name in names)}
    return sorted(set(sources) - needed) if needed else []
