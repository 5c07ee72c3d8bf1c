"""Runs SGLang's server on GPUs, in the engine's environment: `python -m sglang.launch_server`, but that its workers can compare
weights, that an adapter can be unloaded after clients left, that pages of other sites get no answer, and that keys are neither in
the log nor in answers.

SGLang spawns its workers, and each of them imports this file anew.
"""

import os
import sys

import equality
import hidden

equality.install()

if __name__ == "__main__":
    import guarded
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        options = prepare_server_args(sys.argv[1:])
        hidden.hide(options)
        hidden.install()
        guarded.install(options.host)
        if "--enable-lora" in sys.argv:
            import released

            released.install()
        run_server(options)
    finally:
        kill_process_tree(os.getpid(), include_parent=False)
