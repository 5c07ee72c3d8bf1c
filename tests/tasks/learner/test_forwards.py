"""How a model is forwarded: proved for its own configuration, by no list of names; and paths are exact where trees are not."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PretrainedConfig

from nbrl.infra.node_cache import NodeSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.attention.paths import PathRows
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.model.forward import Forward
from nbrl.tasks.learner.step import equality
from nbrl.tasks.learner.step.equality import forward_of, proved, small
from tests.tasks.learner import update_lab
from tests.tasks.learner.test_families import SIZES

TREE, PATHS = Forward(), Forward("paths", "sdpa", packed=True)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1e4}
DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


def config(family: str, **fields: Any) -> PretrainedConfig:
    made: PretrainedConfig = getattr(transformers, f"{family}Config")(**SIZES | fields)
    return made


@pytest.mark.parametrize(
    ("family", "fields", "expected"),
    [
        ("Qwen3", {"head_dim": 16}, TREE),
        ("Qwen2", {"rope_parameters": YARN}, TREE),
        ("Mistral", {"sliding_window": None}, TREE),
        ("Mistral", {"sliding_window": 512}, TREE),  # as long as the context, and never acts
        ("Mistral", {"sliding_window": 400}, PATHS),
        ("Cohere", {"logit_scale": 0.25}, Forward(own_head=True)),
        ("Gemma2", {"head_dim": 16, "sliding_window": 4096}, Forward("paths", "eager", own_head=True, packed=True)),
        ("GptOss", {"num_local_experts": 4, "head_dim": 16}, Forward("paths", "eager")),
        ("Mamba", {"state_size": 8}, Forward("paths", "eager")),
        # Scales queries by their place in what is forwarded, in every fourth layer, from 8 192 tokens on.
        ("Llama4Text", {"num_hidden_layers": 8, "num_local_experts": 4, "head_dim": 16}, Forward("paths", "sdpa", own_head=True)),
    ],
)
def test_what_is_proved_decides(family: str, fields: dict[str, Any], expected: Forward) -> None:
    assert proved(config(family, **fields)) == expected


@pytest.mark.parametrize(
    ("family", "fields", "wanted", "said"),
    [
        ("Bert", {"is_decoder": False}, "auto", "bert model cannot be trained exactly .*log-probs differ"),
        ("Llama", {"rope_parameters": DYNAMIC}, "auto", "llama model cannot be trained exactly"),
        ("Gemma2", {"head_dim": 16}, "tree", "gemma2 model cannot be trained exactly .*set update.attention to auto"),
    ],
)
def test_what_is_exact_in_no_way_is_refused(family: str, fields: dict[str, Any], wanted: Any, said: str) -> None:
    with pytest.raises(UpdateError, match=said):
        proved(config(family, **fields), wanted)


def test_the_small_model_keeps_a_layer_of_each_type_and_lets_windows_act() -> None:
    types = ["sliding_attention", "sliding_attention", "full_attention"] * 4
    made = small(config("Gemma2", num_hidden_layers=12, layer_types=types, sliding_window=4096, max_position_embeddings=8192))
    assert (made.num_hidden_layers, made.layer_types) == (2, ["sliding_attention", "full_attention"])
    assert made.sliding_window < equality.FAR


def test_what_was_proved_is_kept_for_the_same_configuration_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config("Qwen3", head_dim=16).save_pretrained(tmp_path / "a")
    config("Qwen3", head_dim=32).save_pretrained(tmp_path / "b")
    nodes, proofs = NodeSettings(cache=str(tmp_path / "cache/folders")), list[int]()

    def counted(found: PretrainedConfig, wanted: Any = "auto") -> Forward:
        proofs.append(found.head_dim)
        return TREE

    monkeypatch.setattr(equality, "proved", counted)
    assert [forward_of(str(tmp_path / name), "auto", nodes) for name in ("a", "a", "b", "a")] == [TREE] * 4
    assert proofs == [16, 32]
    for kept in (tmp_path / "cache/forwards").iterdir():
        kept.write_text('{"kind": "tree", "implementation": "evil"')
    assert forward_of(str(tmp_path / "a"), "auto", nodes) == TREE
    assert len(proofs) == 3


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 4), packed=st.booleans())
def test_rows_hold_every_path_and_each_token_at_its_place(seed: int, count: int, packed: bool) -> None:
    forest = Forest(update_lab.examples(update_lab.make_trajectories(seed, count)))
    tree = forest.pack()
    rows = PathRows(tree.end_T, tree.positions_T, torch.device("cpu"), packed)
    ids_BL = rows.ids(torch.from_numpy(tree.input_ids_T))
    leaves = [index for index in range(len(tree.end_T)) if tree.end_T[index] == index + 1]
    held = [ids_BL[row].tolist() for row in range(len(ids_BL))]
    for row, leaf in enumerate(leaves):
        path = tree.input_ids_T[[index for index in range(leaf + 1) if tree.end_T[index] > leaf]].tolist()
        found = held if packed else [held[row][: len(path)]]
        assert any(each[start : start + len(path)] == path for each in found for start in range(len(each) - len(path) + 1))
    assert len(held) <= len(leaves)
    if rows.position_BL is not None:
        assert rows.pick(rows.position_BL[..., None], torch.arange(len(tree.end_T)))[:, 0].tolist() == tree.positions_T.tolist()
    every = torch.arange(len(tree.end_T))
    assert rows.pick(ids_BL[..., None], every)[:, 0].tolist() == tree.input_ids_T.tolist()
    assert rows.tokens == sum(int(tree.positions_T[leaf]) + 1 for leaf in leaves)
    assert np.all(tree.positions_T < ids_BL.shape[1])
