"""Memory of GPUs before a training begins: what layers keep is counted, and what cannot fit is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.attention import tree_attention
from nbrl.tasks.model_folder.shape import KNOWN, Shape
from nbrl.tasks.runs.gpu_memory import GIB, cards, check_fits, kept_bytes, learner_parts, table
from nbrl.tasks.runs.plan import plan
from nbrl.tasks.runs.recipes import load
from tests import gpus

TOKENS = 255
TINY: dict[str, Any] = {"vocab_size": 512, "tie_word_embeddings": True, "head_dim": 64}
SHAPES = [
    (Qwen3Config, {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4}),
    (Qwen3Config, {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8}),
    (Qwen2Config, {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 2}),
    (LlamaConfig, {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 4}),
]


@pytest.fixture(autouse=True)
def none_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    gpus.fake(monkeypatch, count=0)
    yield
    gpus.forget()


class Attention(torch.autograd.Function):
    """Keeps what FlexAttention does: its inputs, its output and the sums of its softmax."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, torch.empty(q.shape[:3], dtype=torch.float32))
        return out


class Blocks:
    """Attention over whole blocks, to which the tokens are padded, as on a GPU."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> torch.Tensor:
        padded = [torch.nn.functional.pad(each, (0, 0, 0, 1)).contiguous() for each in (q, k, v)]
        out: torch.Tensor = Attention.apply(*padded)  # type: ignore[no-untyped-call]
        return out[:, :, :-1].transpose(1, 2).contiguous()


def saved_bytes(config: PretrainedConfig) -> int:
    """Bytes that a forward pass keeps for the backward pass, without weights."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation=tree_attention.NAME, dtype=torch.bfloat16).eval()
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    seen: dict[int, int] = {}
    held: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)
        return tensor

    places = torch.arange(TOKENS)[None]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model.base_model(input_ids=places % 512, position_ids=places, attention_mask=None, use_cache=False, tree=Blocks())
    return sum(seen.values())


@pytest.mark.parametrize(("family", "widths"), SHAPES)
def test_what_a_layer_keeps_of_a_token_is_what_is_counted(family: type[PretrainedConfig], widths: dict[str, int]) -> None:
    counted = [saved_bytes(family(**TINY, **widths, **{"num_hidden_layers": layers})) for layers in (1, 2)]
    shape = Shape.of(family(**TINY, **widths).to_dict())
    assert shape is not None
    assert kept_bytes(shape) == pytest.approx((counted[1] - counted[0]) / TOKENS, rel=0.02)


def test_the_shapes_of_known_models_have_their_numbers_of_parameters() -> None:
    assert [round(shape.parameters / 1e9, 2) for shape in KNOWN.values()] == [0.6, 4.02, 7.62]


def test_the_learner_needs_at_least_what_one_gpu_showed() -> None:
    """GiB at the peak, on an H200: benchmarks/results/gpu_day.jsonl."""
    for micro_batch, recompute, measured in ((20_000, False, 47.3), (20_000, True, 14.0), (8192, False, 25.9)):
        config = load(
            "qwen3-0.6b",
            [f"update.tokens_per_micro_batch={micro_batch}", f"update.activation_checkpointing={str(recompute).lower()}"],
        )
        estimated = sum(learner_parts(config, KNOWN["Qwen/Qwen3-0.6B"]).values()) / GIB
        assert measured <= estimated <= 1.25 * measured


def test_what_cannot_fit_is_refused_with_the_settings_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.fake(monkeypatch)
    check_fits(load("qwen3-0.6b"))
    kept = ["update.activation_checkpointing=false"]
    with pytest.raises(ConfigError, match=r"updating needs about 96 GiB and has 80; set update\.activation_checkpoint"):
        check_fits(load("qwen3-0.6b", [*kept, "update.tokens_per_micro_batch=40000"]))
    with pytest.raises(ConfigError, match=r"sampling needs about 8\d GiB and has 80; .*lower engine\.extra_args\.mem-fraction"):
        check_fits(load("qwen3-0.6b", ["engine.extra_args.mem-fraction-static=0.9"]))
    check_fits(load("qwen3-0.6b", kept))  # while it learns the engine's cache is not there
    with pytest.raises(ConfigError, match=r"engine and learner needs about 83 GiB and has 80"):
        check_fits(load("qwen3-0.6b", [*kept, "pipeline.lag=1", "pipeline.uncorrected=true"]))
    gpus.fake(monkeypatch, mib=24_000)
    with pytest.raises(
        ConfigError, match=r"and has 23; lower update\.tokens_per_micro_batch from 20000; or raise update\.workers"
    ):
        check_fits(load("qwen3-4b"))


def test_the_plan_has_a_line_for_each_kind_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus.fake(monkeypatch, count=8)
    for recipe in ("qwen3-0.6b", "qwen3-4b", "qwen2.5-7b"):
        config = load(recipe)
        check_fits(config)
        learner, engines = cards(config)
        assert learner.name == f"learner ({config.update.workers})"
        assert engines.name == f"engines ({config.engine.count})"
        assert {f"# memory of a GPU, {line}" for line in table(config)} <= {*plan(config).splitlines()}


def test_less_memory_is_taken_by_what_saves_it() -> None:
    shape = KNOWN["Qwen/Qwen3-4B"]

    def taken(*overrides: str) -> float:
        return sum(learner_parts(load("qwen3-4b", overrides), shape).values())

    for less in ("update.workers=8", "update.lora.rank=16", "update.offload=[optimizer]", "update.kl_coefficient=0"):
        assert taken(less) < taken(), less
    for more in ("update.activation_checkpointing=false", "update.workers=2", "update.dtype=float32", "update.critic={}"):
        assert taken(more) > taken(), more
    assert table(load("tiny-cpu")) == []
