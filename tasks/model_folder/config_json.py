"""The fields of a model's config.json that decide whether it can be trained exactly; transformers reads the rest."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.infra.parse import json_value
from nbrl.infra.paths import content
from nbrl.tasks.errors import UpdateError, fault_in_words

Model = TypeVar("Model", bound=BaseModel)


# Those whose attention and log-probs on trees are proved equal to their own; others cap, scale or sink scores in ways of theirs.
FAMILIES = ("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
ALWAYS_SLIDE = ("mistral", "phi3")  # where sliding_window is set
ALIKE = (*ALWAYS_SLIDE, "qwen3_moe")  # all layers slide or none does, whatever layer_types say
# Others scale by the length of the current sequence, which in a tree is that of many sequences.
SCALINGS = ("default", "linear", "llama3", "yarn")
MULTIMODAL = "is a multimodal model; only text models can be trained"
REFUSED = {
    "vision_config": MULTIMODAL,
    "audio_config": MULTIMODAL,
    "text_config": MULTIMODAL,
    "quantization_config": "holds quantised weights; give the model they were made from",
    "auto_map": "brings code of its own, which is not run; give a model that transformers has itself",
    "per_layer_config": "configures layers one by one, which is not proved exact on trees; give a model whose layers are alike",
}

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
    """The fields of config.json of a model of FAMILIES."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model_type: str
    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size
    layer_types: list[str] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int = 0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    def rows(self) -> dict[str, int]:
        """Return the rows of matrices with hidden_size columns, by layer; none that a family's default decides."""
        head = self.head_dim or (None if self.model_type == "qwen3" else self.hidden_size // self.num_attention_heads)
        rows = {"embed_tokens": self.vocab_size, "lm_head": self.vocab_size}
        if head is not None:
            rows["q_proj"] = self.num_attention_heads * head
        if head is not None and self.num_key_value_heads is not None:
            rows["k_proj"] = rows["v_proj"] = self.num_key_value_heads * head
            rows["qkv_proj"] = (self.num_attention_heads + 2 * self.num_key_value_heads) * head
        return rows


def architecture(folder: Path) -> Architecture:
    """Return the architecture. Raises UpdateError, in one sentence, unless it can be trained exactly."""
    path = folder / "config.json"
    if not path.is_file():
        raise UpdateError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    for problem in _foreign(read_json(path, Origin)):
        raise UpdateError(f"{folder} {problem}")
    architecture = read_json(path, Architecture)
    for problem in _inexact(architecture):
        raise UpdateError(f"{folder} {problem}")
    return architecture


def _foreign(config: Origin) -> Iterator[str]:
    """Yield why the model is none that can be trained, the plainest first."""
    for key, reason in REFUSED.items():
        if key in (config.model_extra or {}):
            yield reason
    if config.model_type not in FAMILIES:
        yield f"is a {config.model_type} model; exact on trees are {', '.join(FAMILIES)}"
    if not any(name.endswith("ForCausalLM") for name in config.architectures or ()):
        yield f"is no causal language model: config.json names the architectures {config.architectures}"


def _inexact(config: Architecture) -> Iterator[str]:
    if config.layer_types is not None and len(config.layer_types) != config.num_hidden_layers:
        yield f"has {len(config.layer_types)} layer_types but num_hidden_layers {config.num_hidden_layers} in config.json"
    if _slides(config):
        yield "has layers with a sliding window; only full attention is exact on trees"
    rope = config.rope_scaling or config.rope_parameters or {}  # in the order of transformers
    if any(isinstance(value, dict) for value in rope.values()):
        yield "scales the positions of its layers by their types; only one scaling for all layers can be trained"
    scaling = rope.get("rope_type", rope.get("type", "default"))
    if scaling not in SCALINGS or (config.model_type == "phi3" and scaling != "default"):  # phi3 takes yarn for longrope
        yield f"scales its positions by {scaling}; exact on trees are {', '.join(SCALINGS)}, and for phi3 default alone"


def _slides(config: Architecture) -> bool:
    """Return whether any layer has a sliding window, by the rules of transformers."""
    family = config.model_type
    if config.layer_types and family not in ALIKE:
        return set(config.layer_types) != {"full_attention"}
    if config.sliding_window is None or config.sliding_window >= config.max_position_embeddings:
        return False
    if family in ALIKE:
        return family in ALWAYS_SLIDE or bool(config.use_sliding_window)
    return bool(config.use_sliding_window) and config.max_window_layers < config.num_hidden_layers
