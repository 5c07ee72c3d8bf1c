"""IPython's shell as a notebook needs it whose kernel cannot be started again."""

import sys
import warnings
from typing import Any

from nbrl.sandbox.inside.streams import CapturedStream


def adjust(shell: Any) -> None:
    """Let `exit()` and `quit()` end their cell alone, as `sys.exit()` does; without a code or with 0 that is no error.

    Stock kernels run such a cell to its end and stop after it. What IPython needs of a cell's namespace is put back where
    `globals().clear()` took it away.
    """
    show = shell._showtraceback

    def showtraceback(kind: Any, value: BaseException, lines: list[str]) -> None:
        _restore_streams()  # else what shows the error fails
        if not _went_well(value):
            show(kind, value, lines)

    def begins() -> None:
        if "_oh" not in shell.user_ns:
            shell.init_user_ns()
            shell.user_ns.setdefault("__name__", "__main__")

    def ended(result: Any) -> None:
        _restore_streams()
        if _went_well(result.error_in_exec):
            result.error_in_exec = None

    shell._showtraceback = showtraceback
    shell.ask_exit = lambda: sys.exit(shell.keepkernel_on_exit or None)  # the argument of `exit`, whatever its name
    shell.events.register("pre_execute", begins)
    shell.events.register("post_run_cell", ended)
    warnings.filterwarnings("ignore", "To exit: use", UserWarning)


def _restore_streams() -> None:
    """Take the kernel's own stream where a cell has left none that can be flushed, as is done after each cell and error."""
    for name, stock in CapturedStream.made.items():
        try:
            getattr(sys, name).flush()
        except Exception:
            setattr(sys, name, stock)


def _went_well(ended: BaseException | None) -> bool:
    return isinstance(ended, SystemExit) and (ended.code is None or ended.code == 0)


def outlive_tasks(loop: Any) -> None:
    """Let `loop` go on when a task or a callback that a cell left behind exits, or takes an interrupt that was not for it."""
    run = loop.run_forever

    def run_forever() -> None:
        while not CapturedStream.forked:
            try:
                run()
                return
            except (SystemExit, KeyboardInterrupt):
                continue

    loop.run_forever = run_forever
