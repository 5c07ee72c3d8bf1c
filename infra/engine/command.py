"""Makes SGLang's command line and environment from the settings and the model."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel

from nbrl.infra.engine.settings import MEMORY_SAVER, EngineSettings, new_key
from nbrl.infra.errors import EngineError
from nbrl.infra.gpu import gpus
from nbrl.infra.paths import content
from nbrl.infra.process.garbage import NEW_OBJECTS

ENGINE_CODE = Path(__file__).parent / "environment"
LOOPBACK = "127.0.0.1"
LAUNCHERS = {"cpu": ENGINE_CODE / "launch.py", "cuda": ENGINE_CODE / "launch_gpu.py"}
CPU_TOTAL_TOKENS = 65536  # of KV cache: 0.13 GB for the tiny policy


@dataclass(frozen=True)
class AdapterRoom:
    """An engine's room for LoRA adapters: their rank, the names of their layers, and how many it serves at once."""

    rank: int
    modules: tuple[str, ...]
    count: int = 1


@dataclass(frozen=True)
class Door:
    """The address of an engine and the keys of its requests: they must bring `key`, and those that change weights
    `administrator`, where it is another one. With a `name` it takes and gives text too, as the model of this name. With `stops`
    requests may name texts that end an answer.

    No engine is without a key: other users of the machine, and web pages, reach what listens on it.
    """

    host: str = LOOPBACK
    key: str = field(default_factory=new_key, repr=False)
    administrator: str = field(default="", repr=False)
    name: str = ""
    stops: bool = False


@dataclass(frozen=True)
class Member:
    """One of the machines of an engine, by its number. They meet at a free address, `host:port`, of the first."""

    number: int
    meeting: str


def command(
    settings: EngineSettings,
    model_path: Path,
    port: int,
    seed: int,
    room: AdapterRoom | None = None,
    version: str = "initial",
    adapters: Mapping[str, Path] = MappingProxyType({}),
    door: Door | None = None,
    keys: Path | None = None,
    member: Member | None = None,
) -> list[str]:
    """Return the launch line; the server's weights are called `version`, and `keys` is a file with the door's keys.

    Without a name, tokens go in and out as ids, so that the server loads no tokenizer, unless it is to find texts among them.

    The server has the `adapters`, by name, before it takes the first request.
    """
    door = door or Door()
    flags: dict[str, str] = {
        "model-path": str(model_path),
        "host": door.host,
        "port": str(port),
        "random-seed": str(seed),
        "max-running-requests": str(settings.max_running_requests),
        "log-level-http": "warning",
        "skip-server-warmup": "",  # `server.wait` sends the first request
        "weight-version": version,
        "tp-size": str(settings.tensor_parallel),
        "gc-threshold": str(NEW_OBJECTS),
        "sleep-on-idle": "",  # else an idle scheduler burns nine tenths of a core
    }
    if member is not None:
        flags |= {"nnodes": str(settings.machines), "node-rank": str(member.number), "dist-init-addr": member.meeting}
    flags |= {"served-model-name": door.name} if door.name else {} if door.stops else {"skip-tokenizer-init": ""}
    if keys is not None:
        flags["config"] = str(keys)
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
        }
        flags.setdefault("max-total-tokens", str(CPU_TOTAL_TOKENS))
    else:
        flags |= {"device": "cuda", "dtype": settings.dtype}
    if room is not None:
        # Requests without an adapter take a place too.
        flags |= {"enable-lora": "", "max-lora-rank": str(room.rank), "max-loras-per-batch": str(room.count + 1)}
        if settings.resolved_device == "cpu":
            flags["lora-backend"] = "torch_native"
    flags |= settings.extra_args
    line = [str(settings.python), str(LAUNCHERS[settings.resolved_device])]
    for name, value in flags.items():
        line += [f"--{name}", value] if value else [f"--{name}"]
    line += ["--lora-target-modules", *room.modules] if room else []
    return line + (["--lora-paths", *(f"{name}={path}" for name, path in adapters.items())] if adapters else [])


def last_gpus(index: int, count: int, named: str | None) -> str:
    """Return the numbers of the `count` GPUs of engine `index`; `named` are those that this process may use, None for all of
    them.

    Engines take GPUs from the last on, since Ray gives the learner the first: they share one only where there are too few.
    """
    visible = [str(i) for i in range(gpus())] if named is None else named.split(",")
    places = max(1, len(visible) // count)
    end = len(visible) - index % places * count
    return ",".join(visible[max(0, end - count) : end])


def environment(settings: EngineSettings, model_path: Path, base: dict[str, str], visible: str | None = None) -> dict[str, str]:
    """Return the engine's variables on top of `base`; `visible` are the numbers of its GPUs."""
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
            "SGLANG_CPU_OMP_THREADS_BIND": "|".join(["0"] * settings.tensor_parallel),
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHDYNAMO_DISABLE": "1",  # seeded sampling would be compiled in C++ at first use
        }
    else:
        # SGLang compiles kernels at its start, with the compiler and the ninja of its environment.
        variables["PATH"] = os.pathsep.join([str(settings.folder / "bin"), *filter(None, [variables.get("PATH")])])
        if toolkits := list(settings.folder.glob("lib/python3*/site-packages/nvidia/cu13")):
            variables.setdefault("CUDA_HOME", str(toolkits[0]))
        if MEMORY_SAVER in settings.extra_args:  # it works with no other allocator than torch's usual one
            for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
                variables.pop(name, None)
        # Compiled kernels outlive an engine; its temporary files, among which torch would keep them, do not.
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path.home() / ".cache/nbrl/inductor"))
    if visible is not None:
        variables["CUDA_VISIBLE_DEVICES"] = visible
    return variables


def vocabulary_size(model_path: Path) -> int:
    size = _model_config(model_path).vocab_size
    if size is None:
        raise EngineError(f"{model_path}/config.json has no vocab_size: give a folder of a language model in Hugging Face format")
    return size


class _ModelConfig(BaseModel):
    vocab_size: int | None = None
    architectures: list[str] | None = None


def _model_config(model_path: Path) -> _ModelConfig:
    try:
        return _ModelConfig.model_validate_json(content(model_path / "config.json"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{model_path} holds no readable config.json: give a folder in Hugging Face format") from error


@cache
def _model_sources(package: Path) -> dict[str, str]:
    return {path.stem: path.read_text(errors="replace") for path in package.glob("*.py")}


def _other_architectures(settings: EngineSettings, model_path: Path) -> list[str]:
    """Return SGLang's model files that do not name this model's class: importing all 200 of them costs seconds at every start."""
    names = _model_config(model_path).architectures
    packages = list(settings.folder.glob("lib/python3*/site-packages/sglang/srt/models"))
    if not names or not packages:
        return []
    sources = _model_sources(packages[0])
    needed = {stem for stem, text in sources.items() if any(name in text for name in names)}
    return sorted(set(sources) - needed) if needed else []
