"""Compiles kernels that SGLang would compile at its first start on a GPU: `python kernels.py 9.0`, by the GPU's architecture.

It needs no GPU. What a toolkit lacks is said at set-up, and the first start is shorter: kernels stay below ~/.cache/tvm-ffi.
Their shapes are those of Qwen3; a model of other shapes compiles its own at its first start.
"""

import sys

import torch
from sglang.jit_kernel import activation, kvcache, norm, rope, utils

HEAD, KEYS = 128, 2048  # numbers of a head; bytes of a token's keys in a layer

if __name__ == "__main__":
    major, minor = map(int, sys.argv[1].split("."))
    with utils.override_jit_cuda_arch(major, minor):
        activation._jit_activation_module(torch.bfloat16)
        rope._jit_fused_rope_module(True, HEAD, torch.bfloat16)
        norm._jit_qknorm_module(HEAD, torch.bfloat16)
        kvcache._jit_kvcache_module(KEYS)
