"""What victims and the sibling run before any test: helpers of cells, the sibling's secrets, tools."""

from typing import Any

from nbrl.sandbox.host_calls import CallHandler

MIB = 1024 * 1024

# What cells lean on. `attempt` notes what is done although it should have been refused.
PRELUDE = '''
import ctypes, fcntl, mmap, os, re, resource, signal, socket, struct, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
did, refusals = [], []

def attempt(name, action, *arguments):
    try:
        did.append(f"did {name} {action(*arguments)}"[:200])
    except Exception as error:
        refusals.append(error)

def system(number, *arguments):
    """A system call by its number; an OSError when it fails."""
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    done = libc.syscall(ctypes.c_long(number), *wide)
    if done == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done

def secrets_in(data):
    return sorted({hit.decode() for hit in re.findall(rb"nbrl-canary-[a-z]+-[0-9a-f]{32}", data)})
'''

SIBLING = """
import os, socket
memory = {memory!r}
os.environ["NBRL_CANARY"] = {environment!r}
for path in ("canary", "/tmp/canary", "/dev/shm/canary"):
    with open(path, "w") as file:
        file.write({workspace!r})
listeners = [socket.socket(socket.AF_UNIX)]
listeners[0].bind("\\0nbrl-sibling")
listeners[0].listen()

def check():
    for sock in listeners:
        sock.setblocking(False)
        try:
            sock.accept()
            return "somebody connected"
        except BlockingIOError:
            pass
    texts = [open(path).read() for path in ("canary", "/tmp/canary", "/dev/shm/canary")]
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [memory, os.environ["NBRL_CANARY"], *texts, sorted(os.listdir(".")), pids, os.getcwd()]
"""


async def echo(arguments: dict[str, Any]) -> Any:
    """A tool that gives back its argument `value`."""
    return arguments["value"]


async def big(arguments: dict[str, Any]) -> Any:
    """A tool with the longest answer that is allowed."""
    return "x" * (MIB - 100)


TOOLS: dict[str, CallHandler] = {"echo": echo, "big": big}
