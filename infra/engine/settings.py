"""Settings of the inference engines, and the keys that their requests must bring."""

import os
import re
import secrets
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from nbrl.infra.closed import FREE, ClosedModel, acts_if
from nbrl.infra.gpu import gpus
from nbrl.infra.placement import Resources


class EngineSettings(ClosedModel):
    """Settings of SGLang. Every engine serves the same model; `count` of them share the work, each with its own port."""

    environment: str = Field(
        ".venv-engine",
        description="folder of the Python environment with SGLang, relative to the current folder or else to the repository; the "
        "repository's own first when not set",
        json_schema_extra=FREE,
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto uses the GPUs if there are any")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="dtype of weights and computation; auto is float32 on the CPU and the model's own on a GPU; bfloat16 on the "
        "CPU takes less memory, but its log-probabilities are about 0.05 nats off",
    )
    count: int = Field(
        default=1,
        ge=1,
        description="engines that share the work, each with all the weights",
        json_schema_extra=FREE,
    )
    tensor_parallel: int = Field(default=1, ge=1, description="GPUs of one engine; its weights are split over them")
    machines: int = Field(
        default=1,
        ge=1,
        description="machines of a cluster over which one engine is split; each gives it tensor_parallel / machines GPUs",
        json_schema_extra=FREE | acts_if("ray.address"),
    )
    max_total_tokens: int | None = Field(
        default=None,
        ge=256,
        description="tokens that one engine keeps in its KV cache; when not set, 65536 on the CPU and what fits on a GPU",
    )
    max_running_requests: int = Field(
        default=64,
        ge=1,
        description="requests that one engine processes at once; further ones wait",
        json_schema_extra=FREE,
    )
    resources: Resources = Field(
        {},
        description="resources of the Ray cluster that one engine takes, such as {engine: 1}: it is placed where they are",
        json_schema_extra=FREE | acts_if("ray.address"),
    )
    threads: int = Field(default=1, ge=1, description="CPU threads of one engine", json_schema_extra=FREE)
    seeded_sampling: bool = Field(
        False, description="sample each request with a seed of its own, so that the same request gives the same tokens"
    )
    port: int | None = Field(
        default=None,
        ge=1024,
        le=65535,
        description="port of the first engine, the others take the ports after it; any free ports when not set",
        json_schema_extra=FREE,
    )
    start_timeout_s: float = Field(
        default=900,
        gt=0,
        description="maximum seconds until an engine answers after its start; on a GPU the first one compiles kernels",
        json_schema_extra=FREE,
    )
    request_timeout_s: float = Field(
        default=120,
        gt=0,
        description="maximum seconds of one request, including the wait for its turn",
        json_schema_extra=FREE,
    )
    extra_args: dict[str, str] = Field(
        {}, description="further flags of SGLang's server, without their dashes; the value is empty if a flag takes none"
    )

    @field_validator("extra_args", mode="before")
    @classmethod
    def _as_text(cls, given: Any) -> Any:
        """Return the arguments with numbers written as on a command line."""
        if not isinstance(given, dict):
            return given
        return {name: str(value) if type(value) in (int, float) else value for name, value in given.items()}

    @field_validator("extra_args")
    @classmethod
    def _no_setting_of_its_own(cls, given: dict[str, str]) -> dict[str, str]:
        """Refuse what a recipe must not name; a validator of the whole model would also refuse what this program adds later."""
        for name in given:
            if not _FLAG.fullmatch(name):  # SGLang would take host=0.0.0.0 for a flag and its value
                raise ValueError(f"extra_args has {name[:80]!r}, which is no name of a flag")
            if name in RESERVED:
                raise ValueError(f"extra_args cannot set {name}: a setting of its own decides it")
        return given

    @model_validator(mode="after")
    def _possible(self) -> "EngineSettings":
        if self.tensor_parallel % self.machines:
            raise ValueError(f"machines is {self.machines}, which does not divide tensor_parallel, {self.tensor_parallel}")
        if self.resolved_device == "cpu" and self.tensor_parallel != self.machines:
            raise ValueError("on a CPU tensor_parallel must be equal to machines; to use more cores, raise count or threads")
        if self.resolved_device == "cpu" and self.dtype == "float16":
            raise ValueError("on CPU the engine computes in float32 or bfloat16; set dtype to auto, float32 or bfloat16")
        return self

    @property
    def resolved_device(self) -> Literal["cpu", "cuda"]:
        if self.device == "auto":
            return "cuda" if gpus() else "cpu"
        return self.device

    @property
    def gpus_per_machine(self) -> int:
        return self.tensor_parallel // self.machines

    @property
    def computes_in_float32(self) -> bool:
        """Return whether it computes in float32, whatever the numbers in the model's files are."""
        return self.dtype == "float32" or (self.dtype == "auto" and self.resolved_device == "cpu")

    @property
    def folder(self) -> Path:
        """Return the engine's environment: in the repository, where set-up creates it, or as set, in the current folder."""
        here, beside = Path(self.environment).absolute(), CODE / self.environment
        # The current folder may be hostile, and hold a program of that name.
        chosen = self.environment != type(self).model_fields["environment"].default
        return beside if beside.exists() and not (chosen and here.exists()) else here

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"


_FLAG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
CODE = Path(__file__).resolve().parents[2]
ROUTES = "enable-return-routed-experts"  # SGLang then says which experts it chose, where it is asked to
MEMORY_SAVER = "enable-memory-saver"  # SGLang then gives back the memory of its KV cache where it is asked to
# Flags that other settings decide, and flags on which the client relies.
RESERVED = frozenset(
    {"model-path", "host", "port", "device", "dtype", "tp-size", "random-seed", "max-total-tokens", "max-running-requests"}
    | {"enable-deterministic-inference", "skip-tokenizer-init", "skip-server-warmup", "weight-version", MEMORY_SAVER, ROUTES}
    | {"served-model-name", "api-key", "config", "nnodes", "node-rank", "dist-init-addr", "nccl-init-addr"}
    | {
        "tensor-parallel-size",
        "pp-size",
        "pipeline-parallel-size",
        "dp-size",
        "data-parallel-size",
    }  # GPUs that no recipe asked for
    | {"enable-lora", "max-lora-rank", "max-loras-per-batch", "lora-target-modules", "lora-paths"}
)


def new_key() -> str:
    """Return 256 random bits as hexadecimal digits: SGLang would take a key that begins with - for an option."""
    return secrets.token_hex(32)


def write_keys(path: Path, key: str, administrator: str) -> None:
    """Write keys as SGLang's configuration, in a new file that only this user can read: every user can see a command line.

    `key` is that of requests; that of the `administrator` is needed to change weights.
    """
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        yaml.safe_dump({"admin-api-key": administrator, "api-key": key}, file)


def headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
