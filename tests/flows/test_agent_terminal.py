"""`nbrl agent` in a terminal: what is awaited is shown while it is awaited, and Ctrl-C is heard."""

import os
import pty
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flows.model_server import act, model_server
from tests.processes import heed_interrupts

pytestmark = pytest.mark.process

NBRL = Path(sys.executable).with_name("nbrl")


def in_terminal(folder: Path, typed: Callable[[bytes], bytes], *arguments: str) -> tuple[int, bytes]:
    """The exit code and all that the terminal got. `typed` says what to type when so much has been shown."""
    child, terminal = pty.fork()
    if child == 0:
        heed_interrupts()
        os.chdir(folder)
        os.execve(NBRL, [str(NBRL), "agent", *arguments], os.environ | {"TERM": "xterm-256color", "COLUMNS": "120"})
    shown, ends = b"", time.monotonic() + 120
    try:
        while time.monotonic() < ends:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(terminal, 1 << 16)
            except OSError:  # the other end is closed
                break
            if keys := typed(shown):
                os.write(terminal, keys)
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), shown


@pytest.mark.more
def test_steps_are_shown_while_they_happen(tmp_path: Path) -> None:
    cells = [
        act("import time\nnotepad.add_facts(['no' + 'ted'])\ntime.sleep(1)\nprint('se' + 'en \\x1b]0;evil\\x07')"),
        act("submit_final_answer(6 * 7)"),
    ]
    with model_server(*cells, sglang=True) as server:
        code, shown = in_terminal(tmp_path, lambda _: b"", "What?", "--endpoint", server.url, "--save", "out.ipynb")
    assert code == 0, shown
    order = [b"What?", b"the model thinks", b"I think about it", b"the cell runs", b"seen", b"noted", b"step 2", b"42"]
    places = [shown.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places)
    assert b"\x1b]0;evil" not in shown
    assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l"), "the cursor is shown again"


@pytest.mark.more
def test_ctrl_c_ends_a_cell_that_would_go_on_for_ever(tmp_path: Path) -> None:
    stubborn = "while True:\n    try:\n        while True: pass\n    except BaseException: pass"
    pressed: list[bytes] = []

    def press(shown: bytes) -> bytes:
        if b"the cell runs" not in shown or pressed:
            return b""
        pressed.append(b"\x03")
        return b"\x03"

    with model_server(act(stubborn), sglang=True) as server:
        code, shown = in_terminal(tmp_path, press, "What?", "--endpoint", server.url, "--save", "out.ipynb")
    assert code == 130, shown
    assert b"what was done until then is in out.ipynb" in shown
    assert (tmp_path / "out.ipynb").is_file()
