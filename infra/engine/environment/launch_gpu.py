"""Runs SGLang's server on GPUs, in the engine's environment: `python -m sglang.launch_server` whose workers can compare weights.

SGLang spawns its workers, and each of them imports this file anew.
"""

import os
import sys

import equality

equality.install()

if __name__ == "__main__":
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(sys.argv[1:]))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
