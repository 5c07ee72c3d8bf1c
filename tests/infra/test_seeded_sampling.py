"""The hash by which a request's seed decides its sample, against MurmurHash3 written out for one key at a time."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from nbrl.infra.engine.environment import seeds

WORD = 0xFFFFFFFF


def murmur(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 of whole words, after Appleby's description."""

    def rotated(x: int, by: int) -> int:
        return ((x << by) | (x >> (32 - by))) & WORD

    state = 0
    for start in range(0, len(data), 4):
        word = int.from_bytes(data[start : start + 4], "little") * 0xCC9E2D51 & WORD
        state = (rotated(state ^ (rotated(word, 15) * 0x1B873593 & WORD), 13) * 5 + 0xE6546B64) & WORD
    state ^= len(data)
    state = (state ^ (state >> 16)) * 0x85EBCA6B & WORD
    state = (state ^ (state >> 13)) * 0xC2B2AE35 & WORD
    return state ^ (state >> 16)


def test_the_reference_gives_known_values() -> None:
    assert murmur(b"test") == 0xBA6BD213
    assert murmur(b"\0\0\0\0") == 0x2362F9DE


@given(
    st.lists(
        st.tuples(st.integers(min_value=-(2**63), max_value=2**63 - 1), st.integers(min_value=0, max_value=2**31 - 1)),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.integers(min_value=0, max_value=2**31 - 1), min_size=1, max_size=4),
)
def test_a_seed_decides_by_murmur_hash(requests: list[tuple[int, int]], columns: list[int]) -> None:
    given_seeds, positions = (torch.tensor(values, dtype=torch.int64) for values in zip(*requests, strict=True))
    found = seeds.murmur_hash32(given_seeds, positions, torch.tensor(columns)).numpy()
    expected = [
        [murmur(seed.to_bytes(8, "little", signed=True) + position.to_bytes(4, "little") + column.to_bytes(4, "little"))
         for column in columns]
        for seed, position in requests
    ]  # fmt: skip
    assert found.dtype == np.uint32
    assert found.tolist() == expected
