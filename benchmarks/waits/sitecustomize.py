"""Makes cells and updates of a training wait, in whatever process they run: what overlap.py puts on the path of Python.

`NBRL_CELL_WAIT_S` is added to each of the first `NBRL_CELLS` cells of a kernel, as a tool that answers late does; to those of a
share `NBRL_SLOW_SHARE` of the kernels `NBRL_SLOW_TIMES` as much. With `NBRL_SIGMA` the waits of a kernel are lognormal with that
deviation of the logarithm, and this median. `NBRL_UPDATE_S` is what an update takes at least, and
counts as its computation. Neither computes while it waits.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType

CELL, CELLS, UPDATE, SHARE, TIMES, SIGMA = (
    float(os.environ.get(f"NBRL_{name}", 0)) for name in ("CELL_WAIT_S", "CELLS", "UPDATE_S", "SLOW_SHARE", "SLOW_TIMES", "SIGMA")
)


def cells(module: ModuleType) -> None:
    import asyncio
    import itertools
    import random
    import weakref

    kernel, numbers = module.SandboxedKernel, itertools.count()
    execute, waits, executed = kernel.execute, weakref.WeakKeyDictionary(), weakref.WeakKeyDictionary()

    async def late(self, *given, **named):
        if self not in waits:
            number = next(numbers)
            times = TIMES if int((number + 1) * SHARE) > int(number * SHARE) else 1
            waits[self] = CELL * times * random.Random(number).lognormvariate(0, SIGMA)
        executed[self] = executed.get(self, 0) + 1
        if executed[self] <= CELLS:
            await asyncio.sleep(waits[self])
        return await execute(self, *given, **named)

    kernel.execute = late


def updates(module: ModuleType) -> None:
    import time

    learner = module.Learner
    execute = learner.execute

    def slow(self, order):
        begun = time.monotonic()
        result = execute(self, order)
        rest = max(0.0, UPDATE - (time.monotonic() - begun))
        time.sleep(rest)
        result.metrics["seconds/step"] += rest
        return result

    learner.execute = slow


PATCHES = {"nbrl.tasks.rollout.notebooks": cells, "nbrl.tasks.learner.learner": updates}


class Patched(importlib.abc.MetaPathFinder):
    """Finds the modules above as others do, and patches them once they are loaded."""

    def find_spec(self, name, path=None, target=None):
        patch = PATCHES.get(name)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def loaded(module):
            load(module)
            patch(module)

        spec.loader.exec_module = loaded
        return spec


if CELL or UPDATE:
    sys.meta_path.insert(0, Patched())
