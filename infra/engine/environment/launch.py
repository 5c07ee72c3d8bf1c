"""Runs SGLang's server on a CPU, in the engine's environment: the same command line as `python -m sglang.launch_server`.

Eleven things differ:

- Garbage is not collected during the imports, and what they made is left out of later collections.
- Nothing imports scipy, which only losses of transformers use.
- The workers are forked from this process instead of spawned, so that SGLang is imported once, not three times, which is most of
  its start.
- Attention is that of attention.py.
- Deterministic inference, which SGLang has for accelerators, means here that a request's seed decides its sample.
- LoRA layers and the record of experts do without pinned memory, and an adapter can be unloaded after clients left.
- Weights can be compared with files.
- Members of an engine that spans several machines do not sum in shared memory, which none shares with another.
- Pages of other sites get no answer.
- Keys are neither in the log nor in what the server reports of itself.
"""

import gc
import multiprocessing
import sys

if __name__ == "__main__":
    sys.modules["scipy"] = None  # type: ignore[assignment]  # transformers would import it for losses of object detection
    gc.disable()  # it would look at all that was imported so far again and again, a fifth of the imports' time
    multiprocessing.set_start_method("fork")
    multiprocessing.set_start_method = lambda *_, **__: None  # type: ignore[method-assign, assignment]  # SGLang asks for "spawn"

    import attention
    import equality
    import guarded
    import hidden
    import released
    import seeds
    import unpinned
    from sglang.launch_server import run_server
    from sglang.srt import batch_invariant_ops, server_args
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers import sampler
    from sglang.srt.managers import detokenizer_manager, scheduler  # noqa: F401  # what the workers would import
    from sglang.srt.model_executor import model_runner

    batch_invariant_ops.enable_batch_invariant_mode = lambda: None
    sampler.murmur_hash32 = seeds.murmur_hash32
    server_args.add_deterministic_attention_backend_choices([attention.NAME])
    server_args.add_radix_supported_deterministic_attention_backend_choices([attention.NAME])
    equality.install()
    if {"--enable-lora", "--enable-return-routed-experts"} & {*sys.argv}:
        unpinned.install()
    if "--enable-lora" in sys.argv:
        released.install()
    if "--nnodes" in sys.argv:
        # By these it decides to do so, and nothing else.
        model_runner._is_cpu_amx_available = model_runner._is_cpu_arm64 = False
        parallel_state.is_shm_available = lambda *_: False

    gc.collect()
    gc.freeze()  # a flush of the cache collects garbage: it must not walk through all that was imported
    gc.enable()
    options = server_args.prepare_server_args(sys.argv[1:])
    hidden.hide(options)
    hidden.install()
    guarded.install(options.host)
    run_server(options)
