"""Says whether an engine's parameters are, bit for bit, the tensors of a folder in the dtypes in which the engine has them.

The model's own loader reads the folder once more, and each of its copies into a parameter becomes a comparison with what is
there. So whatever the loader fuses, splits over GPUs or pads is compared as it was loaded, and nothing is written.

Runs in the engine's environment, inside a worker, for the request `/weights_checker` with the action `equals:FOLDER`. With
`equals_sent:JSON` the tensors come from rank 0 of a process group, which the JSON names, instead of a folder.
"""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

ACTION, SENT = "equals:", "equals_sent:"
WHOLE_NUMBERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Layers whose parameters stay as they were loaded; others rearrange or quantise them afterwards.
PLAIN = frozenset({"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"})


def install() -> None:
    """Let this process, and those forked from it, answer ACTION and SENT."""
    from sglang.srt.utils.weight_checker import WeightChecker

    others = WeightChecker.handle

    def handle(self: Any, action: str, *arguments: Any, **options: Any) -> Any:
        runner = self._model_runner
        if action.startswith(ACTION):
            folder = Path(action.removeprefix(ACTION))
            return compared(runner.model, _tensors(folder), str(folder))
        if action.startswith(SENT):
            given = json.loads(action.removeprefix(SENT))
            sent = _sent(runner._model_update_group[given["group"]], runner.device, given["buckets"])
            return compared(runner.model, sent, "what is sent")
        return others(self, action, *arguments, **options)

    WeightChecker.handle = handle


def compared(model: Any, tensors: Iterable[tuple[str, Tensor]], source: str) -> dict[str, Any]:
    """Return how many parameters equal the tensors, which differ, and which cannot be compared and why; `source` names the
    tensors.

    Never raises: ranks whose results SGLang gathers must all have one.
    """
    parameters = dict(model.named_parameters())
    rearranged = _rearranged(model)
    comparing = _Comparing(parameters)
    why = ""
    try:
        with comparing:
            model.load_weights(tensors)
    except Exception as error:
        why = f"its loader cannot read {source} again, {type(error).__name__}: {error}"
    different = comparing.different - rearranged
    unproved = (set(parameters) - comparing.whole() | rearranged | comparing.strange) - different
    return {
        "per_gpu_checksum": "",  # SGLang makes one of all ranks'
        "equal": len(set(parameters) - different - unproved),
        "different": sorted(different),
        "unproved": sorted(unproved),
        "why": why,
    }


class _Comparing(TorchDispatchMode):
    """While it is active, writes to the parameters compare instead. Other operations do what they do."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {each.untyped_storage().data_ptr(): name for name, each in parameters.items() if each.numel()}
        self._sizes = {name: each.numel() for name, each in parameters.items()}
        self._covered: Counter[str] = Counter()
        self.different: set[str] = set()
        self.strange: set[str] = set()

    def whole(self) -> set[str]:
        """Return the parameters all of whose elements have been compared."""
        return {name for name, size in self._sizes.items() if self._covered[name] >= size}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        given = kwargs or {}
        written = _written(func, args, given)
        name = self._names.get(written.untyped_storage().data_ptr()) if written is not None else None
        if name is None or written is None:
            return func(*args, **given)
        make = MADE.get(func)
        if make is None:
            self.strange.add(name)
            return written
        self._covered[name] += written.numel()
        if not torch.equal(_bits(written), _bits(make(written, *args[1:]))):
            self.different.add(name)
        return written


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the tensor into which an operation writes."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(argument.name)
            if isinstance(value, Tensor):
                return value
    return None


def _copied(there: Tensor, source: Tensor, *_: Any) -> Tensor:
    return source.to(device=there.device, dtype=there.dtype).expand_as(there)


def _filled(there: Tensor, value: Any = 0) -> Tensor:
    return torch.full_like(there, float(value))


# What a write would leave in the tensor.
MADE: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.copy_.default: _copied,
    torch.ops.aten.fill_.Scalar: _filled,
    torch.ops.aten.fill_.Tensor: _filled,
    torch.ops.aten.zero_.default: _filled,
}


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(WHOLE_NUMBERS[tensor.element_size()])


def _rearranged(model: Any) -> set[str]:
    """Return names of parameters that the engine lays out in another way than it loads them."""
    names: set[str] = set()
    for path, module in model.named_modules():
        method = module.__dict__.get("quant_method") or module._modules.get("quant_method")
        packed = module.__dict__.get("use_intel_amx_backend", False)
        if packed or (method is not None and type(method).__name__ not in PLAIN):
            names |= {f"{path}.{name}" for name, _ in module.named_parameters()}
    return names


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} has no *.safetensors")
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                yield name, file.get_tensor(name)


def _sent(group: Any, device: Any, buckets: list[dict[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of each bucket, which rank 0 of the group sends as one tensor of bytes."""
    for bucket in buckets:
        dtype: torch.dtype = getattr(torch, bucket["dtype"])
        sizes = [math.prod(shape) * dtype.itemsize for shape in bucket["shapes"]]
        whole = torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        torch.distributed.broadcast(whole, src=0, group=group)
        for name, shape, part in zip(bucket["names"], bucket["shapes"], whole.split(sizes), strict=True):
            yield name, part.view(dtype).reshape(shape)
