"""Messages to token ids and back, for tokenizers with the ChatML markers (Qwen and its kin).

Every piece of glue is tokenised once; text inside a message is encoded with the special tokens switched off, so a page that
contains `<|im_end|>` cannot end a turn.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer

from agent.errors import TokenizerError
from agent.messages import Role

UNKNOWN = -1
"""Stands for a token of a model whose tokenizer is not here; such trajectories can be scored and shown, not trained on."""

START, END = "<|im_start|>", "<|im_end|>"


class ChatTokenizer:
    """Renders messages as `<|im_start|>role\\ntext<|im_end|>\\n` in token ids."""

    def __init__(self, tokenizer: Tokenizer, name: str = "tokenizer") -> None:
        start, end = tokenizer.token_to_id(START), tokenizer.token_to_id(END)
        if start is None or end is None:
            raise TokenizerError(f"{name} has no {START} and {END} tokens; use a model whose chat template is ChatML (Qwen)")
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._start, self.end_id = start, end
        self._newline = self._encode("\n")
        self._heads = {role: [start, *self._encode(f"{role}\n")] for role in ("system", "user", "assistant")}

    @classmethod
    def load(cls, model_path: Path | str) -> "ChatTokenizer":
        file = Path(model_path) / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{file} does not exist; model_path must be a Hugging Face folder with a tokenizer.json")
        try:
            return cls(Tokenizer.from_file(str(file)), str(file))
        except (ValueError, json.JSONDecodeError, OSError) as error:
            raise TokenizerError(f"{file} is not a tokenizer: {error}") from error

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.get_vocab_size()

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def message(self, role: Role, text: str) -> list[int]:
        return [*self._heads[role], *self._encode(text), self.end_id, *self._newline]

    def generation_prompt(self) -> list[int]:
        """What stands before a sampled action."""
        return list(self._heads["assistant"])

    def history(self, sampled: list[int]) -> list[int]:
        """A sampled action as an earlier turn: the same ids, closed exactly once."""
        closed = sampled if sampled and sampled[-1] == self.end_id else [*sampled, self.end_id]
        return [*self._heads["assistant"], *closed, *self._newline]

    def encode_action(self, text: str) -> list[int]:
        """An action that was written, not sampled (scripted policies), closed like a sampled one."""
        return [*self._encode(text), self.end_id]

    def decode(self, ids: list[int]) -> str:
        """Text of a sampled action, without its closing marker."""
        body = ids[:-1] if ids and ids[-1] == self.end_id else ids
        return self._tokenizer.decode(body, skip_special_tokens=False)
