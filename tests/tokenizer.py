"""A byte-level ChatML tokenizer for tests that need one and no trained merges."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nbrl.agent.tokens.tokenizer import ChatTokenizer


def byte_tokenizer() -> ChatTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    return ChatTokenizer(tokenizer)
