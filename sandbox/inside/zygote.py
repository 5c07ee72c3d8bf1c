"""Program of the zygote: `zygote FILTER CONTROL MODULE…`. One thread, libraries imported, shell built; forks kernels on request.

It speaks on one SEQPACKET socket: it sends "ready" when warm; each request is the kernel's birth message with six descriptors
(tool channel, five listening sockets). It answers nothing: the forked kernel announces itself on its tool channel. When the
socket ends so does the zygote, and with it, as they live below its pid namespace, every kernel.
"""

import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from nbrl.sandbox.inside import confine, limits
from nbrl.sandbox.inside.adopted_kernel import announce, install_host_call
from nbrl.sandbox.inside.channel import Channel
from nbrl.sandbox.inside.forked_kernel import ForkedKernel
from nbrl.sandbox.inside.immortal import immortalize
from nbrl.sandbox.inside.streams import CapturedStream

_DESCRIPTORS = 6
# Looks, 10 ms apart: threads that were joined, as the rehearsal's are, stay listed until the system has put them away.
_PUT_AWAY = 300


def _reseed() -> None:
    """Seed this fork's random generators. Those that seed themselves again by their process's number see no change: it is 1."""
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "_ssl" in sys.modules:
        sys.modules["_ssl"].RAND_add(os.urandom(32), 32.0)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]


def _demand_nothing_shared(control: int) -> None:
    """Raises RuntimeError if forks would share open files or writable memory, by which one kernel could reach another."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    shared = [line.split(maxsplit=5)[-1] for line in maps if line.split()[1] in ("rw-s", "-w-s", "rwxs")]
    for name in os.listdir("/proc/self/fd"):
        # The folder that is listed is closed by now.
        with contextlib.suppress(FileNotFoundError):
            if int(name) not in (0, 1, 2, control):
                shared.append(os.readlink(f"/proc/self/fd/{name}"))
    if shared:
        raise RuntimeError(f"kernels would share what the prelude or a module of sandbox.preload holds open: {', '.join(shared)}")


def _live(kernel: ForkedKernel, birth: dict[str, Any], descriptors: list[int]) -> None:
    """Run a forked kernel, in a process of its own."""
    own, *adopted = descriptors
    sock = socket.socket(fileno=own)
    announce(sock, birth["workspace"])
    limits.apply(birth["limits"])
    _reseed()
    CapturedStream.limit = birth["message_chars"]
    install_host_call(Channel(sock, birth["call_bytes"]))
    kernel.connect(birth, adopted)
    kernel.start()


def _serve(control: socket.socket, kernel: ForkedKernel, code: bytes) -> None:
    ids = {"uid": os.geteuid(), "gid": os.getegid()}
    # One buffer, wiped after each fork: a later kernel must not find an earlier one's key in its own memory.
    message, space = bytearray(1 << 16), socket.CMSG_SPACE(4 * _DESCRIPTORS)
    while True:
        size, ancillary, _, _ = control.recvmsg_into([message], space)
        if not size:
            return
        descriptors = [number for _, _, data in ancillary for (number,) in struct.iter_unpack("i", data)]
        try:
            forked = confine.fork() == 0
        except OSError:
            # The host sees the tool channel end, and reads why from our stderr.
            forked = False
            traceback.print_exc()
        if forked:
            # Whatever happens, this process never returns into the zygote's loop.
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                control.close()
                birth = json.loads(message[:size])
                confine.enter({**birth, **ids}, code)
                _live(kernel, birth, descriptors)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        message[:size] = bytes(size)
        for descriptor in descriptors:
            os.close(descriptor)


def _single_thread(modules: list[str]) -> None:
    """Raises RuntimeError when an import left a thread running, for a fork would lose it and keep what it has locked."""
    for _ in range(_PUT_AWAY):
        if (threads := len(os.listdir("/proc/self/task"))) == 1:
            return
        time.sleep(0.01)
    among = ", ".join(modules)
    raise RuntimeError(f"{threads} threads run after the imports, one may; leave out of sandbox.preload what starts one: {among}")


def main() -> None:
    filtered, own, defined, *modules = sys.argv[1:]
    sys.argv = [""]  # in cells, as at a prompt
    with open(int(filtered), "rb") as file:
        code = file.read()
    control = socket.socket(fileno=int(own))
    control.set_inheritable(False)
    with open(int(defined), "rb") as file:
        prelude = file.read().decode()
    gc.disable()  # collections would look again and again at all that was imported
    for name in modules:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    gc.enable()  # before the prelude, which may decide otherwise
    kernel = ForkedKernel.prepare(prelude)
    # What the first reseeding sets up, OpenSSL above all, need not be set up in every kernel: 3 ms of CPU.
    _reseed()
    # No process waits for the kernels here; their ends must not leave zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    _single_thread(modules)
    gc.collect()
    _demand_nothing_shared(control.fileno())
    immortalize()
    gc.freeze()
    control.send(b"ready")
    _serve(control, kernel, code)


if __name__ == "__main__":
    main()
