"""Network: reach a host, a listener, a sibling, or find out where the machine is"""

import socket
from pathlib import Path

import pytest

from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="TCP to the host's loopback, its other addresses, the metadata service, the internet",
    wall="system call filter; own network namespace with nothing but its own loopback",
    effect="no connection leaves; the host's listener never sees one",
)
def test_tcp_reaches_nobody(arena: Arena, victim: Kernel) -> None:
    code = """
for address in (("127.0.0.1", {port}), ("0.0.0.0", {port}), ("{own}", {port}), ("169.254.169.254", 80), ("1.1.1.1", 53)):
    attempt(address[0], socket.create_connection, address, 2)
for address in (("::1", {port}), ("::ffff:127.0.0.1", {port}), ("fe80::1", 80), ("2606:4700:4700::1111", 53)):
    attempt(address[0], lambda: socket.socket(socket.AF_INET6).connect(address))
attempt("fastopen", lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", {port})))
attempt("device", lambda: socket.socket().setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0"))
"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Sends nothing: it asks which of our addresses would.
        own = "127.0.0.2" if probe.connect_ex(("192.0.2.1", 9)) else probe.getsockname()[0]
    victim.refused(code.format(port=arena.canaries.tcp.getsockname()[1], own=own))


@pytest.mark.attack(
    tried="DNS and UDP, to resolvers, to loopback, by broadcast and multicast",
    wall="system call filter; own network namespace; no resolver is configured",
    effect="no name resolves, no datagram arrives at the host",
)
def test_udp_and_dns_reach_nobody(arena: Arena, victim: Kernel) -> None:
    code = """
for host in ("127.0.0.1", "127.0.0.53", "1.1.1.1", "255.255.255.255", "224.0.0.251"):
    port = 53 if host.endswith("53") or host == "1.1.1.1" else {port}
    def ask():
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        sender.settimeout(0.2)
        sender.sendto(b"\\x12\\x34\\x01\\0\\0\\1\\0\\0\\0\\0\\0\\0\\7example\\3com\\0\\0\\1\\0\\1", (host, port))
        return sender.recv(512)
    attempt(host, ask)
attempt("resolve", socket.getaddrinfo, "example.com", 80)
attempt("hostname", socket.getaddrinfo, {name!r}, 80)
"""
    victim.refused(code.format(port=arena.canaries.udp.getsockname()[1], name="host.docker.internal"))


@pytest.mark.attack(
    tried="Unix sockets of the host and of siblings: abstract names, named files, everything in /proc/net/unix",
    wall="abstract names belong to a network namespace, named ones to a mount namespace",
    effect="neither the host's listeners nor the sibling's see a connection",
)
def test_unix_sockets_of_others_are_out_of_reach(arena: Arena, victim: Kernel) -> None:
    code = """
listed = [line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) > 7]
names = ["\\0" + {abstract!r}, "\\0nbrl-sibling", {named!r}, *(name.replace("@", "\\0") for name in listed), "/run/docker.sock",
         "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "\\0/tmp/.X11-unix/X0"]
for name in names:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        attempt(repr(name).replace(" ", ""), lambda: socket.socket(socket.AF_UNIX, kind).connect(name))
"""
    names = {"abstract": arena.canaries.abstract_name, "named": str(arena.canaries.folder / "socket")}
    victim.refused(code.format(**names))


@pytest.mark.attack(
    tried="Sockets of all families and protocols: TCP, UDP, vsock, packet, raw, ALG, XDP, Bluetooth, CAN, SCTP, netfilter …",
    wall="system call filter: unix sockets only, for the buffers of all others are the whole machine's",
    effect="none can be made, no kernel module is loaded for one",
)
def test_no_sockets_but_unix_ones_can_be_made(victim: Kernel) -> None:
    code = """
for family in range(64):
    if family != socket.AF_UNIX:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            attempt(f"family-{family}", socket.socket, family, kind)
            attempt(f"pair-{family}", system, 53, family, kind, 0, bytes(8))
for family in (socket.AF_INET, socket.AF_INET6):
    for protocol in (1, 2, 58, 255):
        attempt(f"raw-{protocol}", socket.socket, family, socket.SOCK_RAW, protocol)
    for kind, protocol in ((1, 132), (5, 132), (6, 33), (2, 136), (1, 262), (1, 256), (2, 115), (2, 1), (2, 58)):
        attempt(f"protocol-{protocol}", socket.socket, family, kind, protocol)
for protocol in range(32):
    attempt(f"netlink-{protocol}", socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, protocol)
attempt("vsock", lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).connect((2, 1024)))
"""
    modules = _modules()
    assert victim.refused(code) > 400
    assert _modules() == modules


def _modules() -> set[str]:
    """Loaded kernel modules; an empty set where the kernel has none."""
    listing = Path("/proc/modules")
    return {line.split()[0] for line in listing.read_text().splitlines()} if listing.exists() else set()


@pytest.mark.attack(
    tried="Netlink: list and change interfaces, addresses and routes",
    wall="system call filter; own network namespace, no capabilities",
    effect="loopback is all there is, and it cannot be changed; the host's routes stay",
)
def test_netlink_shows_and_changes_nothing_of_the_host(victim: Kernel) -> None:
    code = """
def ask(kind, flags, body):
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.send(struct.pack("IHHII", 16 + len(body), kind, flags, 1, 0) + body)
    answer = sock.recv(65536)
    if struct.unpack_from("H", answer, 4)[0] == 2 and struct.unpack_from("i", answer, 16)[0]:
        raise OSError(-struct.unpack_from("i", answer, 16)[0], "refused")
    return answer
new_interface = struct.pack("BxHiII", 0, 0, 0, 1, 0xffffffff) + struct.pack("HH8s", 12, 3, b"dummy9")
attempt("newlink", ask, 16, 0x605, new_interface)
attempt("address", ask, 20, 0x605, struct.pack("BBBBI", 2, 24, 0, 0, 1) + struct.pack("HH4s", 8, 2, bytes([10, 0, 0, 1])))
attempt("route", ask, 24, 0x605, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0) + struct.pack("HHI", 8, 4, 1))
attempt("down", ask, 16, 5, struct.pack("BxHiII", 0, 0, 1, 0, 1))
"""
    assert victim.refused(code) == 4
    code = """
names = [line.partition(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]]
print(names, os.listdir("/proc/sys/net/ipv4/conf"))
"""
    assert victim.text(code) == "['lo'] ['all', 'default', 'lo']\n"


@pytest.mark.attack(
    tried="Give inherited sockets, which were made on the host, abstract names there; connect them anew",
    wall="each has a name already, in a folder of the host that kernels do not see",
    effect="no abstract name appears on the host",
)
def test_inherited_sockets_take_no_name_of_the_host(victim: Kernel) -> None:
    code = """
attempt("bind", host_call.__closure__[0].cell_contents._socket.bind, "\\0nbrl-squat")
for name in os.listdir("/proc/self/fd"):
    try:
        sock = socket.socket(fileno=os.dup(int(name)))
        there = sock.getsockname() or sock.getpeername()
    except OSError:
        continue
    if there:
        attempt("bind", sock.bind, f"\\0nbrl-squat{name}")
        attempt("connect", sock.connect, "\\0nbrl-sibling")
"""
    victim.refused(code)
    assert "nbrl-squat" not in Path("/proc/net/unix").read_text()


@pytest.mark.attack(
    tried="Ask inherited sockets, which were made on the host, for its interfaces, addresses and hardware addresses",
    wall="system call filter: ioctls on interfaces and socket namespaces are refused",
    effect="no interface, address or MAC of the host is learned",
)
def test_inherited_sockets_do_not_tell_of_the_hosts_network(victim: Kernel) -> None:
    code = """
buffer = ctypes.create_string_buffer(8192)
for name in os.listdir("/proc/self/fd"):
    for request in range(0x8910, 0x8a00):
        try:
            given = struct.pack("iP", 8192, ctypes.addressof(buffer)) if request == 0x8912 else struct.pack("16si20x", b"", 2)
            print("did", name, hex(request), fcntl.ioctl(int(name), request, given))
        except OSError:
            pass
print("asked", buffer.raw.strip(b"\\0"))
"""
    assert victim.text(code) == "asked b''\n"


@pytest.mark.attack(
    tried="Take the host process that holds the other end of a socket: its pid, its pidfd, its descriptors",
    wall="own pid namespace: a pidfd from outside takes no signal; pidfd_getfd is refused",
    effect="the host process gets no signal and gives no descriptor",
)
def test_the_process_at_the_other_end_is_out_of_reach(victim: Kernel) -> None:
    code = """
for name in os.listdir("/proc/self/fd"):
    try:
        sock = socket.socket(fileno=os.dup(int(name)))
        pid = struct.unpack("iii", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        attempt("pid of the host", lambda: 1 / (pid not in (0, 1)))
    except OSError:
        continue
    try:
        pidfd = struct.unpack("i", sock.getsockopt(socket.SOL_SOCKET, 77, 4))[0]
    except OSError:
        continue
    attempt("getfd", system, 438, pidfd, 0, 0)
    attempt("setns", system, 308, pidfd, 0x40000000)
    if pid:
        continue
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, 0):
        attempt("signal", signal.pidfd_send_signal, pidfd, number)
    for request in range(1, 12):
        attempt("namespace", fcntl.ioctl, pidfd, 0xff00 + request, 0)
"""
    victim.refused(code)


@pytest.mark.attack(
    tried="Send descriptors to the host over the kernel's sockets, to fill its table",
    wall="the host reads bytes only; the system closes what comes with them",
    effect="the host holds no more descriptors than before",
)
def test_descriptors_sent_to_the_host_do_not_arrive(victim: Kernel) -> None:
    code = """
for name in list(os.listdir("/proc/self/fd")):
    try:
        sock = socket.socket(fileno=os.dup(int(name)))
        sock.setblocking(False)
        for _ in range(40):
            socket.send_fds(sock, [b"\\0"], [1] * 200)
    except OSError:
        pass
"""
    # Each of these sockets now carries garbage, so that the kernel may well be lost.
    victim.run(code)
    victim.run("1", timeout=1.0)
