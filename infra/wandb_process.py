"""The process that holds a W&B run, under a keeper: `python -m nbrl.infra.wandb_process NUMBER`, the number of a socket.

It reads requests and writes answers there, each a line of JSON; an answer is what failed, empty if nothing did. Nothing but the
metrics, the parameters and names that it is given leaves it, with what W&B's package says about itself: its version, Python's,
and the kind of machine.
"""

import json
import socket
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wandb import Run

STEP = "iteration"  # by which pages draw metrics: W&B's own step only grows, and an evaluation may come after later steps


def main() -> None:
    run: Run | None = None
    with socket.socket(fileno=int(sys.argv[1])).makefile("rw", encoding="utf-8") as talk:
        for line in talk:
            request, error = json.loads(line), ""
            try:
                run = _done(request, run)
            except BaseException as fault:  # W&B's package raises SystemExit too
                said = str(fault).partition("\n")[0]  # advice on W&B's own settings follows
                error = f"{type(fault).__name__}: {said}".removesuffix(": ")
            talk.write(json.dumps({"error": error}) + "\n")
            talk.flush()


def _done(request: Mapping[str, Any], run: "Run | None") -> "Run | None":
    """Do what is requested with the run, and return it."""
    if run is None:
        return _begun(request)
    if "metrics" in request:
        run.log(request["metrics"] | {STEP: request["step"], "_timestamp": request["time_s"]})
        return run
    import wandb

    run.finish()
    wandb.teardown()
    return None


def _begun(request: Mapping[str, Any]) -> "Run":
    import wandb

    settings = wandb.Settings(
        console="off",
        disable_code=True,
        disable_git=True,
        finish_timeout=request["end_s"],
        finish_timeout_raises=True,
        host="",
        init_timeout=request["begin_s"],
        label_disable=True,
        program="nbrl",
        sagemaker_disable=True,
        save_code=False,
        silent=True,
        symlink=False,  # to files that end with this process
        stop_fn=lambda: None,  # the button Stop of a run's page, which would end this process
        x_disable_machine_info=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_save_requirements=False,
    )
    run = wandb.init(**request["init"], settings=settings)
    run.define_metric(STEP)
    run.define_metric("*", step_metric=STEP)
    return run


if __name__ == "__main__":
    main()
