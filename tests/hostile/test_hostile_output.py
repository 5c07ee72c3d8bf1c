"""Output: floods and lies in what a cell shows; a kernel that breaks its own machinery"""

import pytest

from nbrl.sandbox.jupyter.outputs import plain
from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)

# The kernel's ends of the host's connections.
_CONNECTIONS = """
import json
def connections():
    own = host_call.__closure__[0].cell_contents._socket.fileno()
    for name in os.listdir("/proc/self/fd"):
        try:
            sock = socket.socket(fileno=os.dup(int(name)))
            peer = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        except OSError:
            continue
        if peer == 0 and not listens and int(name) != own:
            sock.settimeout(1)
            yield sock
def flood(head, body, count):
    for sock in list(connections()):
        try:
            sock.sendall(head)
            for _ in range(count):
                sock.sendall(body)
        except OSError:
            pass
"""


def _bytes_kept(victim: Kernel, code: str, timeout: float) -> int:
    done = victim.run(code, timeout=timeout)
    for output in done.outputs:
        assert plain(output.text + output.ename + output.evalue) == output.text + output.ename + output.evalue
    return sum(len(output.text.encode()) for output in done.outputs)


@pytest.mark.attack(
    tried="Print for ever: by print, by the descriptor, by children, by displays, by clear_output",
    wall="every stream cut at its source and again on the host; cells have a time",
    effect="at most `output_bytes` are kept, head and tail; the host's memory stays flat",
)
@pytest.mark.parametrize(
    "flood",
    [
        "while True: print('x' * 10_000)",
        "while True: os.write(1, b'x' * 10_000)",
        "subprocess.run(['yes'])",
        "from IPython.display import display, clear_output\nwhile True:\n    display('x')\n    clear_output(wait=True)",
        "while True: print('x', file=[sys.stdout, sys.stderr][int(time.time() * 1e6) % 2])",
    ],
)
def test_endless_output_is_bounded(arena: Arena, victim: Kernel, flood: str) -> None:
    assert _bytes_kept(victim, flood, timeout=0.7) <= 2 * arena.settings.output_bytes


@pytest.mark.attack(
    tried="One huge message: a 60 MB text, result, display, error, traceback, expression",
    wall="cut in the kernel; what goes around that is over 2 MB and ends the connection",
    effect="bounded text, or a kernel that is `dead`; the host's memory stays flat",
)
@pytest.mark.parametrize(
    "huge",
    [
        "print('x' * 60_000_000)",
        "'x' * 60_000_000",
        "raise ValueError('x' * 60_000_000)",
        "type('x' * 60_000, (Exception,), {})('y')\nraise type('x' * 9_000_000, (Exception,), {})('y')",
        "def f(n): return f(n + 1)\nsys.setrecursionlimit(3000)\nf(0)",
        "from IPython.display import display\ndisplay({f'application/{n}': 'x' * 10_000 for n in range(2000)}, raw=True)",
        "from IPython.display import *\ndisplay(Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + bytes(20_000_000), format='png'))",
        "k = get_ipython().kernel\nk.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'x' * 60_000_000})",
    ],
)
def test_one_huge_message_is_bounded(arena: Arena, victim: Kernel, huge: str) -> None:
    assert _bytes_kept(victim, huge, timeout=3.0) <= 2 * arena.settings.output_bytes


@pytest.mark.attack(
    tried="Raw bytes on the kernel's own connections: endless frames of one message, absurd lengths, commands, noise",
    wall="the host's client bounds a message over all its frames and breaks off at the first breach",
    effect="the kernel is `dead`; the host's memory stays flat",
)
@pytest.mark.parametrize(
    ("head", "body", "count"),
    [
        (b"", b"\x01\xff" + bytes(255), 200_000),
        (b"", b"\x01\x00", 200_000),
        (b"\x02" + b"\x00\x00\x00\x10" + bytes(4), bytes(1 << 16), 4000),
        (b"\x02" + b"\xff" * 8, bytes(1 << 16), 4000),
        (b"\x03" + b"\x00\x00\x00\x00\x00\x0f\xff\xff" + bytes((1 << 20) - 1), b"\x01\xff" + bytes(255), 100_000),
        (b"", b"\x04\x05\x04PING", 100_000),
        (b"", b"\xf7nonsense", 10_000),
    ],
)
def test_raw_frames_are_bounded(victim: Kernel, head: bytes, body: bytes, count: int) -> None:
    victim.run(f"{_CONNECTIONS}\nflood({head!r}, {body!r}, {count})", timeout=3.0)
    assert victim.run("1", timeout=1.0).status in ("dead", "ok")


@pytest.mark.attack(
    tried="Terminal escapes, NUL, lone surrogates, wrong UTF-8, in text, results, errors, names",
    wall="the host takes control characters and escapes out of all text",
    effect="what is kept can be printed, encoded and stored",
)
def test_control_characters_do_not_come_through(victim: Kernel) -> None:
    cells = (
        "print('\\x1b[2J\\x1b]0;owned\\x07\\x1bP$q\\x1b\\\\ \\x9b31m \\0 \\ud800 \\x08\\x7f\\u202e')",
        "os.write(1, b'\\xff\\xfe\\x1b[31m\\0\\xc3\\x28\\xed\\xa0\\x80')\nos.system('printf \"\\\\033[5m\\\\377\"')",
        "class R:\n    def __repr__(self): return '\\x1b[31m\\0\\ud800'\nR()",
        "raise type('E\\x1b\\0', (Exception,), {})('\\x1b[31m\\0')",
        "from IPython.display import display\ndisplay({'text/plain': '\\x1b[31m\\0', 'text/\\x1b': 'x'}, raw=True)",
        "raise Exception('\\ud800')",
    )
    for cell in cells:
        _bytes_kept(victim, cell, timeout=20.0)
    assert victim.text("print(6 * 7)") == "42\n"


@pytest.mark.attack(
    tried="Objects whose repr, str, name or display loops, raises, exits or is no text",
    wall="it runs in the kernel, within the cell's time",
    effect="an error, a time-out or a dead kernel for that cell",
)
@pytest.mark.parametrize(
    "body", ["while True: pass", "raise SystemExit", "os._exit(1)", "return 5", "raise self", "return repr(self)"]
)
def test_objects_that_cannot_be_shown_hurt_only_the_cell(victim: Kernel, body: str) -> None:
    code = f"class Odd(Exception):\n    def __repr__(self): {body}\n    __str__ = _repr_html_ = _repr_mimebundle_ = __repr__\n"
    victim.run(code + "odd = Odd()")
    for cell in ("odd", "print(odd)", "raise odd"):
        victim.run(cell, timeout=0.5, expressions={"odd": "odd"})


@pytest.mark.attack(
    tried="Ask for input: input(), getpass, reading descriptor 0, a forged input_request",
    wall="cells get an error, for there is no stdin; the host does not connect to that channel",
    effect="an error or an end of file, no wait",
)
def test_nobody_is_asked_for_input(victim: Kernel) -> None:
    code = """
import getpass
attempt("input", input, "password: ")
attempt("getpass", getpass.getpass)
attempt("descriptor", lambda: 1 / len(os.read(0, 10)))
"""
    assert victim.refused(code) == 3
    forged = "k = get_ipython().kernel\nk.session.send(k.stdin_socket, 'input_request', {'prompt': 'x'})\nk._allow_stdin = True\n"
    victim.run(forged + "input('x')", timeout=0.7)


@pytest.mark.attack(
    tried="Break the kernel's own machinery: stdout, modules, builtins, threads, descriptors, signal handlers, the channel",
    wall="none: it is the cell's own process; the host waits on a pidfd and on time",
    effect="the cell ends as `ok`, `error`, `timeout` or `dead`, and never hangs its user",
)
@pytest.mark.parametrize(
    "harm",
    [
        "sys.stdout = sys.stderr = None\nprint('x')",
        "sys.modules.clear()",
        "import builtins\nbuiltins.__dict__.clear()",
        "os.closerange(0, 128)",
        "os.closerange(3, 128)\nwhile True: pass",
        "host_call.__closure__[0].cell_contents._socket.close()\nattempt('call', host_call, 'echo', {'value': 1})",
        "k = get_ipython().kernel\nk.session.send = lambda *a, **b: None",
        "get_ipython().kernel.iopub_thread.io_loop.add_callback(time.sleep, 1000)\nprint('x')\nsys.stdout.flush()",
        "import gc\nfor o in gc.get_objects():\n    if type(o).__name__ in ('Socket', 'Context'): o.__dict__.clear()",
        "import asyncio\nasyncio.get_running_loop().stop()\nraise KeyboardInterrupt",
        "for n in os.listdir('/proc/self/fd'):\n    os.dup2(0, int(n))",
        "get_ipython().kernel.do_shutdown(True)\nexit()\nquit()",
        "threading.Thread(target=lambda: [time.sleep(0.1), os._exit(0)]).start()\ntime.sleep(5)",
    ],
)
def test_a_broken_kernel_hangs_nobody(victim: Kernel, harm: str) -> None:
    victim.run(harm, timeout=1.0)
    victim.run("print(1)", timeout=0.5)
