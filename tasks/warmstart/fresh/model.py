"""The tiny policy's network: transformers' own Qwen3, small."""

import shutil
from pathlib import Path

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.warmstart.fresh.tokenizer import PAD_ID, FreshModel, make_tokenizer, save_tokenizer

# Tied embeddings of about unit length, and branches that start almost silent: a token's identity reaches the last layer from the
# first step on, which is what copying is made of.
EMBEDDING_STD, WEIGHT_STD = 0.08, 0.04


def make_model(settings: FreshModel, seed: int, vocab_size: int, end_id: int, pad_id: int) -> Qwen3ForCausalLM:
    """Return fresh weights in float32, a function of the arguments."""
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.hidden_size // settings.heads,
        intermediate_size=settings.intermediate_size,
        max_position_embeddings=settings.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
        tie_word_embeddings=True,
        initializer_range=WEIGHT_STD,
        eos_token_id=end_id,
        pad_token_id=pad_id,
        bos_token_id=None,
        use_cache=True,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=EMBEDDING_STD)
        for layer in model.model.layers:
            for branch in (layer.self_attn.o_proj, layer.mlp.down_proj):
                torch.nn.init.normal_(branch.weight, std=WEIGHT_STD / (2 * settings.layers) ** 0.5)
    model.generation_config = GenerationConfig(
        do_sample=True, temperature=1.0, top_p=1.0, eos_token_id=end_id, pad_token_id=pad_id
    )
    return model


def make_folder(fresh: FreshModel, seed: int, agent: AgentSettings, folder: Path) -> Path:
    """Fill `folder`, a function of the arguments; what an interrupted call left there is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(fresh, seed, agent)
    chat = ChatTokenizer(tokenizer)
    make_model(fresh, seed, chat.vocab_size, chat.end_id, PAD_ID).save_pretrained(folder, safe_serialization=True)
    save_tokenizer(tokenizer, folder)
    return folder
