"""A renderer for hosted chat models, whose tokenizer is not available."""

from collections.abc import Sequence
from typing import NoReturn

from nbrl.agent.messages import Role, Span
from nbrl.agent.pictures import picture_size
from nbrl.agent.text import storable
from nbrl.agent.tokens.tokenizer import UNKNOWN

BYTES_PER_TOKEN = 4
TURN_TOKENS = 4  # markers and role of a turn; three of them come before its text
OPENING_TOKENS = 3
PIXELS_PER_TOKEN, PICTURE_TOKENS = 750, 16_384  # models cut a picture into patches, and make a very large one smaller
UNSIZED_TOKENS = 1_600  # of a picture whose size cannot be read: about 1100 × 1100 pixels


class EstimatingRenderer:
    """A Renderer whose ids are all UNKNOWN; only their number means something: a token for every 4 bytes of UTF-8, rounded up.

    English has about 4 bytes a token, Chinese (3 bytes a character) about 3, code and digits fewer: leave room for it. Pictures
    count where the model `sees_images`.
    """

    def __init__(self, sees_images: bool = False) -> None:
        self._sees_images = sees_images

    def message(self, role: Role, text: str, after: Role = "assistant", tags: Sequence[Span] = ()) -> list[int]:
        return self._unknown(TURN_TOKENS) + self.encode_action(text)

    def pictures(self, images: Sequence[bytes]) -> list[int]:
        return self._unknown(sum(map(_picture_tokens, images))) if self._sees_images else []

    def generation_prompt(self) -> list[int]:
        return self._unknown(OPENING_TOKENS)

    def history(self, sampled: list[int]) -> list[int]:
        return self._unknown(TURN_TOKENS + len(sampled))

    def encode_action(self, text: str) -> list[int]:
        return self._unknown(-(-len(storable(text).encode()) // BYTES_PER_TOKEN))

    def decode(self, ids: list[int]) -> NoReturn:
        raise RuntimeError("unknown ids have no text: a policy without a tokenizer sets Generation.text")

    def _unknown(self, count: int) -> list[int]:
        return [UNKNOWN] * count


def _picture_tokens(image: bytes) -> int:
    """Return the tokens of a picture by the size that its header names."""
    size = picture_size(image)
    return min(PICTURE_TOKENS, TURN_TOKENS + size[0] * size[1] // PIXELS_PER_TOKEN) if size else UNSIZED_TOKENS
