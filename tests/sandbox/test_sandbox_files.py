"""Files into a workspace and out of it, while the kernel there does what it likes with them."""

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.workspace import Collected, _plain_parts
from tests.sandbox.sandbox_lab import Lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def collected(lab: Lab, cell: str, **fields: Any) -> Collected:
    """What is collected after `cell`, which must succeed."""

    async def body(kernel: SandboxKernel) -> Collected:
        done = await kernel.execute(cell)
        assert done.status == "ok", done
        return kernel.files.collect()

    found: Collected = lab.with_kernel(body, **fields)
    return found


def test_files_go_in_and_cells_can_change_them(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> tuple[str, Collected]:
        kernel.files.put("table.csv", b"a,b\n1,2\n")
        kernel.files.put("deep/er/é.bin", bytes(range(256)))
        code = """
data = open("table.csv").read()
with open("deep/er/é.bin", "ab") as file: file.write(b"more")
with open("deep/er/new.txt", "w") as file: file.write("made here")
import os
print(data, os.stat("table.csv").st_uid == os.getuid())
"""
        done = await kernel.execute(code)
        return "".join(output.text for output in done.outputs), kernel.files.collect()

    said, found = lab.with_kernel(body)
    assert said == "a,b\n1,2\n True\n"
    assert {file.path: file.data for file in found.files} == {
        "table.csv": b"a,b\n1,2\n",
        "deep/er/é.bin": bytes(range(256)) + b"more",
        "deep/er/new.txt": b"made here",
    }
    assert found.left_out == []


def test_one_file_is_read_and_nothing_that_is_not_one(lab: Lab) -> None:
    code = """
import os
open("plain", "wb").write(bytes(range(256)))
os.makedirs("deep/er"); open("deep/er/é.txt", "w").write("found")
os.symlink("/etc/passwd", "link"); os.symlink("/etc", "folder"); os.mkfifo("fifo")
file = open("sparse", "wb"); file.truncate(40 * 1024 * 1024); file.close()
"""
    refusals = {
        "link": "symbolic links",
        "folder/passwd": "symbolic links",
        "fifo": "not a regular file",
        "deep": "not a regular file",
        "none": "No such file",
        "sparse": "larger than the 2000 bytes",
    }

    async def body(kernel: SandboxKernel) -> tuple[bytes, bytes]:
        done = await kernel.execute(code)
        assert done.status == "ok", done
        for path, reason in refusals.items():
            with pytest.raises(SandboxError, match=f"{path} could not be read: .*{reason}"):
                kernel.files.read(path)
        for path in ("/etc/passwd", "../up", ""):
            with pytest.raises(ValueError, match="is not a path in the workspace"):
                kernel.files.read(path)
        return kernel.files.read("plain"), kernel.files.read("deep/er/é.txt")

    assert lab.with_kernel(body, collect_file_bytes=2000) == (bytes(range(256)), b"found")


def test_a_path_is_taken_once_and_room_is_bounded(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> None:
        kernel.files.put("a", b"")
        with pytest.raises(SandboxError, match="a could not be put into the workspace: File exists"):
            kernel.files.put("a", b"again")
        with pytest.raises(SandboxError, match="could not be put into the workspace: Not a directory"):
            kernel.files.put("a/b", b"")
        with pytest.raises(SandboxError, match="No space left"):
            kernel.files.put("large", b"x" * 3_000_000)
        await kernel.execute("import os; os.symlink('/etc', 'link')")
        with pytest.raises(SandboxError, match="Not a directory"):
            kernel.files.put("link/passwd", b"")
        with pytest.raises(SandboxError, match="File exists"):
            kernel.files.put("link", b"")

    lab.with_kernel(body, workspace_mb=2)


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../up", "a/../../b", ".", "a\nb", "a\0b", "x" * 300])
def test_paths_that_are_not_plain_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not a path in the workspace"):
        _plain_parts(path)


@given(st.text())
def test_a_plain_path_has_no_way_up(path: str) -> None:
    try:
        parts = _plain_parts(path)
    except ValueError:
        return
    assert parts
    assert all(part not in (b"", b".", b"..") and b"/" not in part for part in parts)


def test_links_and_what_is_not_a_file_stay_inside(lab: Lab) -> None:
    code = """
import os, socket
os.symlink("/etc/passwd", "link")
os.symlink("/etc", "folder")
os.symlink("/proc/self/root/etc/hostname", "magic")
os.mkfifo("fifo")
own = socket.socket(socket.AF_UNIX); own.bind("socket")
open("plain", "w").write("fine")
open(b"odd\\xff\\n", "w").close()
os.makedirs("/".join("d" * 12))
open("/".join("d" * 12) + "/deep", "w").close()
"""
    found = collected(lab, code)
    assert [(file.path, file.data) for file in found.files] == [("plain", b"fine")]
    reasons = dict(found.left_out)
    assert {reasons[name] for name in ("link", "folder", "magic", "fifo", "socket")} == {"not a regular file"}
    assert reasons["odd\ufffd\ufffd"] == "its name is not plain text"
    assert any("deeper than 8 folders" in reason for reason in reasons.values())


@pytest.mark.more
def test_what_is_taken_out_is_bounded(lab: Lab) -> None:
    code = """
for number in range(5): open(f"f{number}", "wb").write(b"x" * 1000)
file = open("sparse", "wb"); file.truncate(40 * 1024 * 1024); file.close()
"""
    found = collected(lab, code, collect_files=4, collect_bytes=2500, collect_file_bytes=2000)
    assert [file.path for file in found.files] == ["f0", "f1"]
    assert found.left_out == [(name, "larger than the 500 bytes that are left for it") for name in ("f2", "f3", "f4", "sparse")]
    few = collected(lab, code, collect_files=2)
    assert [file.path for file in few.files] == ["f0", "f1"]
    assert few.left_out[0] == ("f2", "more than 2 files")


def test_a_folder_of_endless_entries_is_left(lab: Lab) -> None:
    code = "import os\nfor n in range(12_000): os.symlink('x', str(n))"
    found = collected(lab, code, workspace_files=20_000)
    assert found.files == []
    assert len(found.left_out) == 1000


def test_a_file_that_is_swapped_for_a_link_meanwhile_never_leads_out(lab: Lab) -> None:
    code = """
import os, threading
os.mkdir("real"); open("real/passwd", "w").write("inside")
def swap():
    while True:
        try:
            os.rename("real", "kept"); os.symlink("/etc", "real")
            os.unlink("real"); os.rename("kept", "real")
        except OSError:
            pass
threading.Thread(target=swap, daemon=True).start()
"""

    async def body(kernel: SandboxKernel) -> list[Collected]:
        await kernel.execute(code)
        return [kernel.files.collect() for _ in range(300)]

    seen = {file.data for found in lab.with_kernel(body) for file in found.files}
    assert seen <= {b"inside"}
    assert seen


def test_files_of_a_dead_kernel_can_still_be_collected_and_nothing_stays_open(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> Collected:
        await kernel.execute("open('left', 'w').write('behind')")
        died = await kernel.execute("import os; os._exit(1)")
        assert died.status == "dead"
        return kernel.files.collect()

    before = len(os.listdir("/proc/self/fd"))
    found = lab.with_kernel(body)
    assert [(file.path, file.data) for file in found.files] == [("left", b"behind")]
    deadline = time.monotonic() + 30
    while len(os.listdir("/proc/self/fd")) > before:  # the pool puts a dead kernel away beside the next one
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_sparse_file_is_not_read_to_find_it_too_large(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> tuple[int, list[tuple[str, str]]]:
        await kernel.execute("open('sparse', 'wb').truncate(60_000_000)")
        tracemalloc.start()
        try:
            left_out = kernel.files.collect().left_out
            return tracemalloc.get_traced_memory()[1], left_out
        finally:
            tracemalloc.stop()

    peak, left_out = lab.with_kernel(body)
    assert [name for name, _ in left_out] == ["sparse"]
    assert peak < 1_000_000


def test_a_closed_workspace_is_nobody_elses(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "others").write_text("secret")

    async def body(kernel: SandboxKernel) -> None:
        number = kernel.files._folder
        kernel.files.close()
        # The number is free; the next kernel's workspace may get it.
        folder = os.open(tmp_path, os.O_PATH)
        os.dup2(folder, number)
        try:
            with pytest.raises(SandboxError):
                kernel.files.read("others")
            assert kernel.files.collect().files == []
        finally:
            for descriptor in {folder, number}:
                os.close(descriptor)
            kernel.files.close()

    lab.with_kernel(body)
