"""The prelude runs once, in the zygote: what all kernels get from it, each has for itself."""

import asyncio

import pytest

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from tests.sandbox.sandbox_lab import Lab

_DRAWN = """
import ssl, tempfile, random, numpy
ssl.RAND_bytes(4), tempfile.mktemp(), random.random(), numpy.random.rand()
"""


def _two(pool_prelude: str, lab: Lab, *cells: str) -> list[list[str]]:
    """What each of two kernels of one pool printed for each cell, the kernels taking turns."""

    async def run() -> list[list[str]]:
        async with KernelPool(lab.settings(), prelude=pool_prelude) as pool, pool.kernel() as first, pool.kernel() as second:
            done = [[await kernel.execute(cell) for kernel in (first, second)] for cell in cells]
        assert {one.status for both in done for one in both} == {"ok"}, done
        return [["".join(output.text for output in one.outputs) for one in both] for both in done]

    return asyncio.run(run())


def test_what_one_kernel_does_to_the_preludes_objects_another_does_not_see(lab: Lab) -> None:
    said = _two("class Notes: kept = []", lab, "Notes.kept.append(1); len.__self__.hidden = 1", "print(Notes.kept, hidden)")
    assert said[1] == ["[1] 1\n", "[1] 1\n"]


@pytest.mark.more
def test_generators_that_the_prelude_used_go_on_differently_in_each_kernel(lab: Lab) -> None:
    for expression in ("ssl.RAND_bytes(8)", "tempfile.mktemp()", "random.random()", "numpy.random.rand()"):
        ((first, second),) = _two(_DRAWN, lab, f"print({expression})")
        assert first != second, expression


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("prelude", "shared"),
    [
        ("import mmap; common = mmap.mmap(-1, 4096)", "/dev/zero"),
        ("import os; common = os.memfd_create('common')", "/memfd:common"),
        ("import socket; common = socket.socketpair()", "socket:"),
    ],
)
def test_a_prelude_that_would_let_kernels_talk_is_refused(prelude: str, shared: str) -> None:
    async def run() -> None:
        async with KernelPool(SandboxSettings(warm=0), prelude=prelude) as pool, pool.kernel():
            pass

    with pytest.raises(SandboxError, match=f"(?s)kernels would share.*{shared}"):
        asyncio.run(run())
