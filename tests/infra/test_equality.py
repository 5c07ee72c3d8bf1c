"""Comparing the parameters of a model with files, by the model's own loader."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nbrl.infra.engine.environment import equality


class UnquantizedLinearMethod:
    """By its name, one that leaves weights as they are loaded."""


class Fp8LinearMethod:
    """One that does not."""


class Model(nn.Module):
    """Fuses `q` and `k`, pads `embed` by a row of zeros, and holds all in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.zeros(5, 4, dtype=torch.bfloat16), requires_grad=False)
        self.qk = nn.Linear(4, 6, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.late = nn.Linear(4, 4, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.qk.quant_method = UnquantizedLinearMethod()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        for name, weight in weights:
            if name == "embed":
                self.embed.data[:4].copy_(weight)
                self.embed.data[4:].fill_(0)
            elif name == "late":
                self.late.weight.data.copy_(weight)
            else:
                self.qk.weight.data.narrow(0, 3 * "qk".index(name), 3).copy_(weight)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {"embed": torch.randn(4, 4), "k": torch.randn(3, 4), "late": torch.randn(4, 4), "q": torch.randn(3, 4)}


def compared(model: Model, weights: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    before = {name: each.clone() for name, each in model.named_parameters()}
    found = equality.compared(model, equality._tensors(folder), str(folder))
    assert all(torch.equal(each, before[name]) for name, each in model.named_parameters())  # nothing is written
    return found


def loaded(weights: dict[str, Tensor]) -> Model:
    model = Model()
    model.load_weights(weights.items())
    return model


def test_fused_padded_and_cast_tensors_equal_their_files(weights: dict[str, Tensor], tmp_path: Path) -> None:
    found = compared(loaded(weights), weights, tmp_path)
    assert (found["equal"], found["different"], found["unproved"], found["why"]) == (3, [], [], "")


def test_one_other_bit_is_found(weights: dict[str, Tensor], tmp_path: Path) -> None:
    model = loaded(weights)
    model.qk.weight.data.view(torch.int16)[4, 2] += 1
    assert compared(model, weights, tmp_path)["different"] == ["qk.weight"]
    model = loaded(weights)
    model.embed.data[4, 0] = 1
    assert compared(model, weights, tmp_path)["different"] == ["embed"]


def test_truncated_weights_are_not_those_rounded_to_nearest(weights: dict[str, Tensor], tmp_path: Path) -> None:
    cut = {name: (each.view(torch.int32) & -(1 << 16)).view(torch.float32) for name, each in weights.items()}
    assert compared(loaded(cut), weights, tmp_path)["different"] == ["embed", "late.weight", "qk.weight"]


def test_what_no_file_fills_or_the_engine_rearranges_is_not_proved(weights: dict[str, Tensor], tmp_path: Path) -> None:
    model = loaded(weights)
    late = weights.pop("late")
    assert compared(model, weights, tmp_path)["unproved"] == ["late.weight"]
    model.late.quant_method = Fp8LinearMethod()
    model.late.weight.data += 1
    found = compared(model, weights | {"late": late}, tmp_path)
    assert (found["different"], found["unproved"], found["equal"]) == ([], ["late.weight"], 2)


def test_a_loader_that_computes_weights_in_place_is_not_proved(
    weights: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(weights)
    monkeypatch.setattr(
        model, "load_weights", lambda given: [model.late.weight.data.add_(each) for _, each in given if len(each) == 4]
    )
    found = compared(model, weights, tmp_path)
    assert (found["equal"], found["unproved"]) == (0, ["embed", "late.weight", "qk.weight"])


def test_a_folder_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    found = equality.compared(Model(), equality._tensors(tmp_path), str(tmp_path))
    assert (found["equal"], found["different"]) == (0, [])
    assert "has no *.safetensors" in found["why"]
