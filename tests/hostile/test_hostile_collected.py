"""Collected files: bait for a reader of a workspace from outside"""

import pickle
import threading

import pytest

from nbrl.sandbox.errors import SandboxError
from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="Links in the workspace: to the host's files by absolute and relative paths, to /proc, to folders, to each other",
    wall="openat2 beneath the workspace, which follows no link of any kind",
    effect="no link is read; its target's bytes are in nothing that was collected",
)
def test_links_are_not_followed(arena: Arena, victim: Kernel) -> None:
    code = """
open("plain.txt", "w").write("plain")
targets = [{canary!r}, "/etc/shadow", "/etc/passwd", "/", "..", "../" * 20 + "etc/passwd", "/proc/self/root", "/proc/1/fd/0", "b"]
for number, target in enumerate(targets):
    os.symlink(target, f"link{{number}}")
os.symlink("loop", "loop")
os.symlink("/etc", "folder")
"""
    assert victim.run(code.format(canary=str(arena.canaries.file))).status == "ok"
    found = victim.kernel.files.collect()
    assert [(file.path, file.data) for file in found.files] == [("plain.txt", b"plain")]
    assert {path for path, _ in found.left_out} == {"loop", "folder", *(f"link{number}" for number in range(9))}
    for path in ("link0", "folder/passwd", "../etc/passwd", "/etc/passwd"):
        with pytest.raises((SandboxError, ValueError)):
            victim.kernel.files.read(path)


@pytest.mark.attack(
    tried="A pickle whose loading runs code, named as data; a module named like one of the host's",
    wall="collected files are bytes; nothing here unpickles or imports them",
    effect="the bytes come out, the code does not run on the host",
)
def test_pickle_bait_is_only_bytes(arena: Arena, victim: Kernel) -> None:
    code = """
import pickle
class Bait:
    def __reduce__(self): return (os.system, ("echo owned > {canary}",))
for name in ("answer.pkl", "data.npy", "model.pt", "state.json"):
    open(name, "wb").write(pickle.dumps(Bait()))
for name in ("numpy.py", "sitecustomize.py", "conftest.py", "evil.pth"):
    open(name, "w").write("import os; os.system('echo owned > {canary}')")
"""
    assert victim.run(code.format(canary=arena.canaries.file)).status == "ok"
    found = {file.path: file.data for file in victim.kernel.files.collect().files}
    assert len(found) == 8
    assert pickle.dumps(0)[:1] == found["answer.pkl"][:1]


@pytest.mark.attack(
    tried="Odd files: FIFOs, sockets, huge and sparse files, deep trees, odd names, thousands of entries",
    wall="only regular files are read, without waiting, within counts and bytes",
    effect="collecting ends, within its bounds; what was left out is named with its reason",
)
def test_odd_files_do_not_block_or_flood(arena: Arena, victim: Kernel) -> None:
    code = """
os.mkfifo("fifo")
socket.socket(socket.AF_UNIX).bind("socket")
with open("sparse", "wb") as file:
    file.truncate(4 << 20)
here = os.getcwd()
for _ in range(20):
    os.mkdir("d")
    os.chdir("d")
os.chdir(here)
for name in (b"\\xff\\xfe", b"a\\nb", b"\\x1b[31m", b"-rf", b" ", "\\u202e".encode()):
    open(name, "w").close()
os.mkdir("closed", 0)
"""
    assert victim.run(code).status == "ok"
    assert {"fifo", "socket"} <= {path for path, _ in victim.kernel.files.collect().left_out}
    victim.run("for number in range(20_000): open(f'n{number}', 'w').close()", timeout=2.0)
    found = victim.kernel.files.collect()
    assert len(found.files) <= arena.settings.collect_files
    assert sum(len(file.data) for file in found.files) <= arena.settings.collect_bytes
    assert len(found.left_out) <= 1_100


@pytest.mark.attack(
    tried="Swap files for links while they are collected",
    wall="each file is opened beneath the workspace at once, and looked at by its descriptor",
    effect="what comes out was in the workspace",
)
def test_a_race_does_not_lead_out(arena: Arena, victim: Kernel) -> None:
    code = """
os.mkdir("a")
open("a/passwd", "w").write("mine")
open("file", "w").write("mine")
os.symlink("/etc", "b")
os.symlink("/etc/passwd", "link")
while True:
    for one, other in (("a", "b"), ("file", "link")):
        os.rename(one, "x"); os.rename(other, one); os.rename("x", other)
"""
    cell = threading.Thread(target=victim.run, args=(code,), kwargs={"timeout": 1.0})
    cell.start()
    seen = set()
    while cell.is_alive():
        seen |= {file.data for file in victim.kernel.files.collect().files}
    cell.join()
    assert seen <= {b"", b"mine"}
