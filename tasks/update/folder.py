"""What a Hugging Face model folder must hold to be trained. Headers are read and no weights, so this loads no torch."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.update.errors import UpdateError

WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"  # peft's name
FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# Those whose attention and log-probs on trees are proved equal to their own; others cap, scale or sink scores in ways of theirs.
FAMILIES = ("llama", "mistral", "olmo2", "phi3", "qwen2", "qwen3", "qwen3_moe", "smollm3")
# These scale by the length of the sequence at hand, which in a tree is that of many sequences.
LENGTH_DEPENDENT = ("dynamic", "longrope")


def check_model(path: str) -> None:
    """Raises UpdateError, in one sentence, unless the folder holds a whole model that can be trained exactly."""
    folder = Path(path)
    config = _config(folder)
    for problem in _problems(config):
        raise UpdateError(f"{path} {problem}")
    found = weights(folder)
    for layer in range(config.get("num_hidden_layers", 0)):
        if not any(name.startswith(f"model.layers.{layer}.") for name in found):
            raise UpdateError(
                f"{path} holds no weights of layer {layer}, but config.json says {config['num_hidden_layers']} layers"
            )
    odd = sorted(name for name, header in found.items() if header["dtype"] not in FLOATS)
    if odd:
        raise UpdateError(f"{path} holds {found[odd[0]]['dtype']} weights ({odd[0]}); only unquantised ones can be trained")
    rows = found.get("model.embed_tokens.weight", {"shape": [None]})["shape"][0]
    if rows != config.get("vocab_size"):
        raise UpdateError(f"{path} embeds {rows} tokens, but config.json says vocab_size {config.get('vocab_size')}")


def check_targets(path: str, names: Sequence[str]) -> None:
    """Raises UpdateError when the model has no layers of one of these names that LoRA could adapt."""
    found = linear_layers(path)
    if odd := [name for name in names if name not in found]:
        raise UpdateError(
            f"{path} has no linear layers named {odd[0]!r} for lora.target_modules; there are {', '.join(sorted(found))}"
        )


def linear_layers(path: str) -> set[str]:
    """The last names of all layers but the output one that LoRA can adapt. Experts and their router are none."""
    return {
        name.split(".")[-2]
        for name, header in weights(Path(path)).items()
        if name.startswith("model.layers.") and len(header["shape"]) == 2 and ".experts." not in name and ".gate." not in name
    }


def weights(folder: Path) -> dict[str, dict[str, Any]]:
    """`dtype` (as safetensors names it) and `shape` of every tensor by name. Raises UpdateError when files are not whole."""
    if (folder / SINGLE).is_file():
        return tensors(folder / SINGLE)
    if not (folder / INDEX).is_file():
        if any(entry.name.endswith(WEIGHT_SUFFIXES) for entry in folder.iterdir()):
            raise UpdateError(
                f"{folder} has neither {SINGLE} nor {INDEX}: load the model with transformers and save it with save_pretrained"
            )
        raise UpdateError(f"{folder} holds no weights")
    places: dict[str, str] = _json(folder / INDEX).get("weight_map", {})
    headers: dict[str, dict[str, Any]] = {}
    for name in sorted(set(places.values())):
        if not (folder / name).is_file():
            raise UpdateError(f"{folder} lacks {name}, which its index names: fetch or save it again")
        headers[name] = tensors(folder / name)
    if lost := sorted(name for name, place in places.items() if name not in headers[place]):
        raise UpdateError(f"{folder}: {places[lost[0]]} lacks {lost[0]}, which its index names: fetch or save it again")
    return {name: headers[place][name] for name, place in places.items()}


def _problems(config: dict[str, Any]) -> Iterator[str]:
    """Why the model cannot be trained, the plainest first."""
    if "vision_config" in config or "audio_config" in config or "text_config" in config:
        yield "is a multimodal model; only text models can be trained"
    if "quantization_config" in config:
        yield "holds quantised weights; give the model they were made from"
    if "auto_map" in config:
        yield "brings code of its own, which is not run; give a model that transformers has itself"
    kind = config.get("model_type")
    if kind not in FAMILIES:
        yield f"is a {kind} model; exact on trees are {', '.join(FAMILIES)}"
    if not any(name.endswith("ForCausalLM") for name in config.get("architectures") or ()):
        yield f"is no causal language model: config.json names the architectures {config.get('architectures')}"
    if _slides(config):
        yield "has layers with a sliding window; only full attention is exact on trees"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaling = rope.get("rope_type", rope.get("type"))
    if scaling in LENGTH_DEPENDENT:
        yield f"scales its positions by {scaling}, which depends on the length of each sequence; that is not exact on trees"


def _slides(config: dict[str, Any]) -> bool:
    """Whether any layer sees less than all before it; by the rules of transformers where `layer_types` are not given."""
    if config.get("layer_types"):
        return set(config["layer_types"]) != {"full_attention"}
    window, optional = config.get("sliding_window"), config.get("model_type") not in ("mistral", "phi3")
    if (
        window is None
        or window >= config.get("max_position_embeddings", 0)
        or (optional and not config.get("use_sliding_window"))
    ):
        return False
    return not optional or bool(config.get("max_window_layers", 0) < config.get("num_hidden_layers", 0))


def _config(folder: Path) -> dict[str, Any]:
    if not (folder / "config.json").is_file():
        raise UpdateError(f"{folder} is not a Hugging Face model folder: it has no config.json")
    return _json(folder / "config.json")


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UpdateError(f"{path} cannot be read: {error}") from error
    return found


def tensors(path: Path) -> dict[str, Any]:
    """`dtype` and `shape` by name; raises UpdateError unless the file is as long as its header says."""
    try:
        length = path.stat().st_size
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(min(size, length)))
    except (OSError, ValueError) as error:
        raise UpdateError(f"{path} is not a safetensors file: {error}") from error
    header.pop("__metadata__", None)
    end = 8 + size + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if length != end:
        raise UpdateError(f"{path} is {length} bytes long, not {end}: fetch or save it again")
    return header
