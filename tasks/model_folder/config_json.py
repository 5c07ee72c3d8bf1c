"""The fields of a model's config.json that decide whether it may be trained; transformers reads the rest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.infra.parse import json_value
from nbrl.infra.paths import content
from nbrl.tasks.errors import UpdateError, fault_in_words

Model = TypeVar("Model", bound=BaseModel)


MULTIMODAL = "is a multimodal model; only text models can be trained"
REFUSED = {
    "vision_config": MULTIMODAL,
    "audio_config": MULTIMODAL,
    "text_config": MULTIMODAL,
    "quantization_config": "holds quantised weights; give the model they were made from",
    "auto_map": "brings code of its own, which is not run; give a model that transformers has itself",
    "per_layer_config": "configures layers one by one, of which no small model can be made; give a model whose layers are alike",
}

# Families whose projections have a row for each number of each head, and nothing else.
PLAIN_HEADS = ("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")

CHOSEN, EXPERTS = "num_experts_per_tok", ("num_experts", "num_local_experts", "n_routed_experts")

Size = Annotated[int, Field(gt=0)]


def read_json(path: Path, model: type[Model]) -> Model:
    """Return the file as a model. Raises UpdateError, in one sentence, if it is not JSON of that form."""
    try:
        return model.model_validate_json(content(path))
    except OSError as error:
        raise UpdateError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        raise UpdateError(f"{path} is not as it should be: {fault_in_words(error)}; fetch or save it again") from error


def name_dtype(folder: Path, dtype: str) -> None:
    """Let the config.json of a model folder name this dtype of its weights; the file stays as it is where it does."""
    path = folder / "config.json"
    config = json_value(path.read_text())
    named = config.pop("torch_dtype", None)  # the older name of the same key
    if config.get("dtype", named) != dtype:
        path.write_text(json.dumps(config | {"dtype": dtype}, indent=2, sort_keys=True) + "\n")


class Origin(BaseModel):
    """The fields of any model's config.json, and all others."""

    model_config = ConfigDict(strict=True, extra="allow")

    model_type: str
    architectures: list[str] | None = None


class Architecture(BaseModel):
    """The fields of config.json that weights are compared with, as far as a family has them under these names."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model_type: str
    vocab_size: Size | None = None
    hidden_size: Size | None = None
    num_hidden_layers: Size | None = None
    num_attention_heads: Size | None = None
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    layer_types: list[str] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    def rows(self) -> dict[str, int]:
        """Return the rows of matrices with hidden_size columns, by layer; none that a family's default decides."""
        rows = {} if self.vocab_size is None else {"embed_tokens": self.vocab_size, "lm_head": self.vocab_size}
        if self.model_type not in PLAIN_HEADS or self.num_attention_heads is None or self.hidden_size is None:
            return rows
        head = self.head_dim or (None if self.model_type == "qwen3" else self.hidden_size // self.num_attention_heads)
        if head is not None:
            rows["q_proj"] = self.num_attention_heads * head
        if head is not None and self.num_key_value_heads is not None:
            rows["k_proj"] = rows["v_proj"] = self.num_key_value_heads * head
            rows["qkv_proj"] = (self.num_attention_heads + 2 * self.num_key_value_heads) * head
        return rows


def architecture(folder: Path) -> Architecture:
    """Return the architecture. Raises UpdateError, in one sentence, unless it is that of a model that may be trained.

    Whether it can be trained exactly is proved when the learner starts (nbrl.tasks.learner.step.equality).
    """
    path = folder / "config.json"
    if not path.is_file():
        raise UpdateError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    for problem in _foreign(read_json(path, Origin)):
        raise UpdateError(f"{folder} {problem}")
    found = read_json(path, Architecture)
    if found.layer_types is not None and found.num_hidden_layers not in (None, len(found.layer_types)):
        layers = f"{len(found.layer_types)} layer_types but num_hidden_layers {found.num_hidden_layers}"
        raise UpdateError(f"{folder} has {layers} in config.json")
    return found


def _foreign(config: Origin) -> Iterator[str]:
    """Yield why the model is none that can be trained, the plainest first."""
    for key, reason in REFUSED.items():
        if key in (config.model_extra or {}):
            yield reason
    if not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in config.architectures or ()):
        yield f"is no causal language model: config.json names the architectures {config.architectures}"


def experts_of(config: object) -> int:
    """Return the number of experts of a layer, of which some are chosen for a token; 0 if a configuration names none."""
    return next((number for name in EXPERTS if isinstance(number := getattr(config, name, None), int)), 0)


def check_experts(path: str) -> None:
    """Raises UpdateError if the model of a folder has no experts whose choice could be replayed."""
    config = read_json(Path(path) / "config.json", Origin)
    if not (config.model_extra or {}).get(CHOSEN):
        raise UpdateError(
            f"a {config.model_type} model has no experts whose choice could be replayed: set update.router_replay to false"
        )
