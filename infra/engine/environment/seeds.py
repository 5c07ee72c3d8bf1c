"""SGLang's seeded sampling on a CPU: its hash of (seed, position, token), a Triton kernel elsewhere, in numpy; the same numbers.

Runs in the engine's environment.
"""

import numpy as np
import torch


def _u(number: int) -> np.uint32:
    return np.uint32(number)


def _rotated(x: np.ndarray, by: int) -> np.ndarray:
    return (x << _u(by)) | (x >> _u(32 - by))


def _mixed(state: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Mix a key into the state in 32 bits, where products and sums wrap around as the hash requires."""
    key = _rotated(key * _u(0xCC9E2D51), 15) * _u(0x1B873593)
    return _rotated(state ^ key, 13) * _u(5) + _u(0xE6546B64)


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Return MurmurHash3 of 16 bytes, seed (8), position (4) and column (4), for every row and column."""
    seeds = seed.numpy().astype(np.uint64)
    state = _mixed(np.zeros(seeds.shape, np.uint32), seeds.astype(np.uint32))
    state = _mixed(state, (seeds >> np.uint64(32)).astype(np.uint32))
    state = _mixed(state, positions.numpy().astype(np.uint32))
    state = _mixed(state[:, None], columns.numpy().astype(np.uint32)[None, :]) ^ _u(16)
    state ^= state >> _u(16)
    state *= _u(0x85EBCA6B)
    state ^= state >> _u(13)
    state *= _u(0xC2B2AE35)
    state ^= state >> _u(16)
    return torch.from_numpy(state)
