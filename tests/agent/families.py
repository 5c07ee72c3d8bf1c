"""Model folders of the chat families, without a model: a byte-level tokenizer with the family's special tokens, and its template.

The templates are those that trl carries.
"""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

# As in GPT-4's, Qwen's and Llama's tokenizers, white space joins: "\n\n" is one piece, and so glue may run into a text.
PIECES = r"'s|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Family:
    """`special` tokens are skipped when text is decoded for people, `controls` are not, such as `<think>`."""

    template: str
    special: tuple[str, ...]
    controls: tuple[str, ...]
    end: str
    begin: str | None = None
    also_ends: tuple[str, ...] = ()


QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>")
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")
THINK = ("<think>", "</think>")
TOOLS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

FAMILIES = {
    "qwen2_5": Family("qwen2_5", QWEN, TOOLS[:2], "<|im_end|>", None, ("<|endoftext|>",)),
    "qwen3": Family("qwen3", QWEN, (*TOOLS, *THINK), "<|im_end|>", None, ("<|endoftext|>",)),
    "qwen3_6": Family("qwen3_6", QWEN, (*TOOLS, *THINK), "<|im_end|>", None, ("<|endoftext|>",)),
    "llama3": Family("llama3", LLAMA, (), "<|eot_id|>", "<|begin_of_text|>", ("<|end_of_text|>",)),
    "llama3_1": Family("llama3_1", LLAMA, (), "<|eot_id|>", "<|begin_of_text|>", ("<|end_of_text|>", "<|eom_id|>")),
    "llama3_2": Family("llama3_2", LLAMA, (), "<|eot_id|>", "<|begin_of_text|>", ("<|end_of_text|>", "<|eom_id|>")),
    "deepseek_r1": Family("deepseek_r1_distill", DEEPSEEK, THINK, "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),
}

GEMMA = ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
ALTERNATING = {
    "gemma": Family("gemma", GEMMA, (), "<end_of_turn>", "<bos>", ("<eos>",)),  # has no system turn
    "gemma3": Family("gemma3", GEMMA, (), "<end_of_turn>", "<bos>", ("<eos>",)),  # puts the system prompt into the first turn
}
"""Their templates want users and assistants to take turns."""


def chat_template(name: str) -> str:
    found = find_spec("trl")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def make_tokenizer(special: tuple[str, ...], controls: tuple[str, ...] = ()) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: index for index, char in enumerate(alphabet)}
    merges = [("Ċ", "Ċ"), ("t", "h"), ("Ġ", "t"), ("Ġt", "h"), ("i", "n"), ("k", ">"), ("Ċ", "Ġ")]
    vocab |= {left + right: len(vocab) + index for index, (left, right) in enumerate(merges)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in controls])
    return tokenizer


def write_folder(folder: Path, family: Family, template: str | None = None) -> Path:
    """What a model's folder says of its turns. `template` replaces the family's own."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(family.special, family.controls)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": chat_template(family.template) if template is None else template,
        "eos_token": family.end,
        "bos_token": family.begin,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ends = [tokenizer.token_to_id(token) for token in (family.end, *family.also_ends)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}), encoding="utf-8")
    return folder
