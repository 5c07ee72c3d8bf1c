"""The tokenizer of a GGUF file as a Hugging Face folder has it."""

from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.gguf_file import GgufFile

CONTROL, USER_DEFINED = 3, 4  # of llama.cpp's types of tokens
SMOLLM = "smollm"


def tokenizer(file: GgufFile) -> Tokenizer:
    """tokenizer.json: byte-level BPE with the file's own tokens and merges. Raises ConfigError if it cuts text in another way."""
    kind = (file.value("tokenizer.ggml.model"), file.value("tokenizer.ggml.pre"))
    if kind != ("gpt2", SMOLLM):
        raise ConfigError(f"the GGUF cuts text by {' and '.join(kind)}; only gpt2 and {SMOLLM} are known")
    tokens = file.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.value("tokenizer.ggml.merges")]
    # Without an unknown token: it would be a control token, which a page could then bring about.
    made = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    made.decoder = decoders.ByteLevel()
    for token, kind_of_token in zip(tokens, file.value("tokenizer.ggml.token_type"), strict=True):
        if kind_of_token in (CONTROL, USER_DEFINED):
            made.add_tokens([AddedToken(token, special=kind_of_token == CONTROL, normalized=False)])
    return made


def tokenizer_config(file: GgufFile) -> dict[str, Any]:
    """tokenizer_config.json, with the chat template."""
    tokens = file.value("tokenizer.ggml.tokens")
    special = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": file.value("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.value("llama.context_length"),
        **{f"{name}_token": tokens[file.value(f"tokenizer.ggml.{its}_token_id")] for name, its in special.items()},
    }
