"""Runs Ray's own worker with garbage collected rarely, because a large part of its work are imports."""

import gc
import runpy

if __name__ == "__main__":
    gc.set_threshold(50_000)
    runpy.run_module("ray._private.workers.default_worker", run_name="__main__", alter_sys=True)
