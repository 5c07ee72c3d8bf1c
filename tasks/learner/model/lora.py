"""LoRA: a frozen model whose linear layers compute W + (alpha / rank) B A, of which only A and B are trained.

The model is that of transformers, with peft's layers in place of its linear ones. B starts at 0, so the initial policy is the
model itself; with the adapters scaled to 0 the model is the reference of a KL.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.model.policy_model import PolicyModel
from nbrl.tasks.learner.settings import LoraSettings
from nbrl.tasks.model_folder.check import ADAPTER_WEIGHTS

if TYPE_CHECKING:  # peft is imported where there are adapters: it would take every rank half a second
    from peft import LoraConfig

NAME = "default"  # peft's name of the only adapter


def adapt(lm: PreTrainedModel, settings: LoraSettings, dtype: torch.dtype, seed: int) -> None:
    """Freeze `lm` and put trainable adapters in it, kept in `dtype` and initialised equally on every rank.

    Raises UpdateError if a name in `target_modules` is not that of a linear layer.
    """
    linear: dict[str, list[str]] = {}  # complete names by last parts: by last parts alone peft would adapt experts too
    for name, module in lm.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not lm.get_output_embeddings():
            linear.setdefault(name.rpartition(".")[2], []).append(name)
    if unknown := [name for name in settings.target_modules if name not in linear]:
        layers = ", ".join(sorted(linear))
        raise UpdateError(f"update.lora.target_modules {unknown[0]!r} is no linear layer of the model; there are {layers}")
    from peft import inject_adapter_in_model

    targets = [name for last in settings.target_modules or linear for name in linear[last]]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            inject_adapter_in_model(_config(settings, targets), lm)
        except ValueError as error:  # some families have layers that work otherwise than linear ones
            reason = " ".join(str(error).split())
            raise UpdateError(f"update.lora cannot adapt this model; name other update.lora.target_modules: {reason}") from error
    for name, parameter in lm.named_parameters():
        parameter.requires_grad_(_adapts(name))
        if _adapts(name):
            parameter.data = parameter.data.to(dtype)


class Unadapted:
    """A policy model without its adapters: the initial model, without a second copy in memory. Call it without gradients."""

    def __init__(self, policy_model: PolicyModel) -> None:
        from peft.tuners.lora import LoraLayer

        self.policy_model = policy_model
        self._layers = [module for module in policy_model.modules() if isinstance(module, LoraLayer)]

    def __call__(self, *inputs: Any) -> Tensor:
        # Not peft's own switch: it also freezes the adapters, and FSDP must find them as trainable as it left them.
        try:
            for layer in self._layers:
                layer.set_scale(NAME, 0.0)
            logp_N: Tensor = self.policy_model(*inputs)
        finally:
            for layer in self._layers:
                layer.set_scale(NAME, 1.0)
        return logp_N


def merged(weights: Mapping[str, Tensor], settings: LoraSettings) -> dict[str, Tensor]:
    """Return the merged weights of an adapted model under the names of the initial model, added in float32 or wider."""
    whole = {}
    for name, value in weights.items():
        if _adapts(name):
            continue
        module, adapted, kind = name.partition(".base_layer.")
        if kind == "weight":
            a, b = (weights[f"{module}.lora_{part}.{NAME}.weight"] for part in "AB")
            wide = torch.promote_types(a.dtype, torch.float32)
            value = value.to(wide) + (settings.alpha / settings.rank) * (b.to(wide) @ a.to(wide))
        whole[f"{module}.{kind}" if adapted else name] = value
    return whole


def write(folder: Path, weights: Mapping[str, Tensor], settings: LoraSettings) -> None:
    """Write only the adapters, in the format in which peft and SGLang load them with the initial model."""
    adapters = {name: value.contiguous() for name, value in weights.items() if _adapts(name)}
    _config(settings, {name.split(".lora_")[0].rpartition(".")[2] for name in adapters}).save_pretrained(str(folder))
    named = {f"base_model.model.{name.replace(f'.{NAME}.', '.')}": value for name, value in adapters.items()}
    save_file(named, folder / ADAPTER_WEIGHTS, {"format": "pt"})


def _config(settings: LoraSettings, targets: Iterable[str]) -> "LoraConfig":
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=sorted(targets),
        task_type="CAUSAL_LM",
    )


def _adapts(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name
