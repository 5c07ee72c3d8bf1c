"""What a cell cannot reach: the host's files, environment, processes, network, kernel interfaces. Real canaries, real kernels."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.sandbox_lab import Lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


@contextlib.contextmanager
def listening(sock: socket.socket) -> Iterator[list[int]]:
    """Counts the connections that `sock` accepts meanwhile."""
    accepted: list[int] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                sock.accept()[0].close()
                accepted.append(1)

    sock.listen()
    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield accepted
    finally:
        sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        thread.join(5)


def test_the_network_is_refused(lab: Lab) -> None:
    code = """
import socket
for family, address in (
    (socket.AF_INET, ("127.0.0.1", {port})), (socket.AF_INET, ("1.1.1.1", 53)), (socket.AF_UNIX, "\\0{name}"),
):
    try:
        socket.create_connection(address, 2) if family == socket.AF_INET else socket.socket(family).connect(address)
        print("connected", address)
    except OSError as error:
        print("refused")
try:
    print("resolved", socket.getaddrinfo("example.com", 80))
except OSError:
    print("refused")
"""
    tcp = socket.create_server(("127.0.0.1", 0))
    abstract = socket.socket(socket.AF_UNIX)
    name = f"nbrl-canary-{os.getpid()}"
    abstract.bind(f"\0{name}")
    with listening(tcp) as first, listening(abstract) as second:
        said = lab.value(code.format(port=tcp.getsockname()[1], name=name))
    assert said == "refused\n" * 4
    assert not first
    assert not second


def test_strange_socket_families_are_refused(lab: Lab) -> None:
    code = """
import socket
for family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG, 31, 44):
    try:
        socket.socket(family, socket.SOCK_DGRAM)
        print("made", family)
    except OSError:
        pass
"""
    assert lab.value(code) == ""


def test_the_hosts_environment_is_not_visible(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBRL_CANARY", "canary-in-the-environment")
    code = """
import os
print(dict(os.environ))
for pid in filter(str.isdigit, os.listdir("/proc")):
    print(open(f"/proc/{pid}/environ", "rb").read())
"""
    # Of a pool of its own, so that all of the sandbox is made from this environment.
    assert "canary" not in Lab(lab.provisioner).value(code)


def test_the_hosts_files_are_not_visible(lab: Lab, tmp_path: Path) -> None:
    canary = tmp_path / "canary.txt"
    canary.write_text("secret")
    code = f"""
import os
for path in ({str(canary)!r}, {str(Path(__file__))!r}, {str(Path.home())!r}, "/etc/shadow", "/etc/hosts", "/var", "/root"):
    if os.path.exists(path):
        print("seen", path)
for folder in os.listdir("/"):
    print(folder)
"""
    seen = set(lab.value(code).split("\n")) - {""}
    assert seen <= {"bin", "sbin", "lib", "lib32", "lib64", "usr", "etc", "dev", "proc", "tmp", "opt", "workspace"}


def test_nothing_but_the_workspace_can_be_written(lab: Lab) -> None:
    code = """
import os, sys
for folder in ("/", "/usr", "/etc", "/dev", "/proc/sys/kernel", "/opt", "/opt/nbrl/nbrl/sandbox/inside", *filter(None, sys.path)):
    try:
        with open(os.path.join(folder or ".", "canary"), "w"):
            print("wrote", folder)
    except OSError:
        pass
with open("/proc/sys/kernel/core_pattern") as file:
    pattern = file.read()
try:
    with open("/proc/sys/kernel/core_pattern", "w") as file:
        file.write(pattern)
        print("wrote core_pattern")
except OSError:
    pass
open("/workspace/a", "w").write("x"); open("/tmp/a", "w").write("x"); open("b", "w").write("x")
print(os.getcwd(), sorted(os.listdir(".")))
"""
    assert lab.value(code) == "/workspace ['a', 'b']\n"


def test_the_workspace_has_a_size(lab: Lab) -> None:
    code = """
import os
for folder in ("/workspace", "/tmp", "/dev/shm"):
    written = 0
    try:
        for number in range(8):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(bytes(2 << 20))
            written += 2
    except OSError:
        pass
    print(written <= 4)
"""
    assert lab.value(code, workspace_mb=4) == "True\n" * 3


def test_other_processes_are_not_visible(lab: Lab) -> None:
    code = """
import os
print(sorted(int(pid) for pid in os.listdir("/proc") if pid.isdigit()), os.getpid())
try:
    os.kill(-1, 0)
except ProcessLookupError:
    print("alone")
"""
    assert lab.value(code) == "[1] 1\nalone\n"


def test_there_are_no_capabilities_and_no_way_to_them(lab: Lab) -> None:
    code = """
import ctypes, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
print([status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == ["0" * 16] * 5)
print(status["NoNewPrivs"], status["Seccomp"], os.getuid() != 0)
libc = ctypes.CDLL(None, use_errno=True)
calls = {
    "unshare": (272, 0x10000000), "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "setns": (308, 0, 0),
    "ptrace": (101, 0, 0, 0, 0), "bpf": (321, 0, 0, 0), "io_uring": (425, 1, 0), "keyctl": (250, 0, 0),
    "clone": (56, 0x10000011, 0, 0, 0, 0), "clone3": (435, 0, 0), "process_vm_readv": (310, 1, 0, 0, 0, 0, 0),
    "userfaultfd": (323, 0), "perf": (298, 0, 0, 0, 0, 0), "chroot": (161, b"/tmp"), "pidfd_getfd": (438, 0, 0, 0),
}
for name, arguments in calls.items():
    if libc.syscall(*arguments) != -1 or ctypes.get_errno() not in (1, 38):
        print("allowed", name, ctypes.get_errno())
"""
    assert lab.value(code) == "True\n1 2 True\n"


def test_limits_cannot_be_raised(lab: Lab) -> None:
    code = """
import resource
for name in ("NPROC", "DATA", "NOFILE", "FSIZE", "CORE"):
    kind = getattr(resource, f"RLIMIT_{name}")
    soft, hard = resource.getrlimit(kind)
    try:
        resource.setrlimit(kind, (hard + 1, hard + 1))
        print("raised", name)
    except (ValueError, OSError):
        pass
"""
    assert lab.value(code) == ""


def test_a_fork_bomb_stays_inside_and_the_kernel_lives(lab: Lab) -> None:
    code = """
import os, signal, time
children = []
try:
    for _ in range(500):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
except BlockingIOError:
    pass
print(len(children) < 64)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
    bomb, after = lab.cells(code, "'alive'", max_processes=64)
    assert (bomb.status, bomb.outputs[0].text) == ("ok", "True\n")
    assert after.outputs[0].text == "'alive'"
