"""Machines out of namespaces, as root on one real machine: each has its own network, mounts, processes and host name.

A bridge in a namespace of its own joins them, and an S3 server stands on it; nothing is routed out. /tmp, /root, /home, /srv,
/run and /dev/shm are each machine's own, and so is the folder above the checkout: a path that one machine writes is on no other.
The checkout, its environments and their Pythons are the same read-only image on all.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.interpreter import for_kernels

NETWORK, S3_PORT, RAY_PORT = "10.77.0", 9000, 6379
BOOT_S, RAY_S = 20.0, 90.0
SECRET = uuid.uuid4().hex  # in no file, not even of the tests
STORE = 150 << 20  # bytes of Ray's object store on each machine

BOOT = """
set -e
name=$0 image=$1 hosts=$2
shift 2 # what remains are the folders of Pythons
hostname machine-$name
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/image
mount --rbind "$image" /run/image
for python; do
  mkdir -p "/run/python$python"
  mount --bind "$python" "/run/python$python"
done
top=/$(echo "$image" | cut -d/ -f2)
for folder in /tmp /root /home /srv "$top"; do
  mountpoint -q /run/image || exit 1
  mount -t tmpfs -o mode=1777 tmpfs "$folder"
done
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p "$image" /srv/run
mount --rbind /run/image "$image"
for python; do
  mkdir -p "$python"
  mount --bind "/run/python$python" "$python"
  mount -o remount,bind,ro "$python"
done
mount -o remount,bind,ro "$image"
printf "127.0.0.1 localhost\\n$hosts\\n" >/run/hosts
mount --bind /run/hosts /etc/hosts
cd /srv/run
touch /run/booted
trap : TERM
while :; do sleep 1000 & wait $! || :; done
"""


def lacking() -> str:
    """Why there can be no machines here; empty if there can."""
    if os.geteuid() != 0:
        return "machines of namespaces need root"
    if missing := [tool for tool in ("ip", "nsenter", "unshare", "setpriv", "hostname") if shutil.which(tool) is None]:
        return f"machines of namespaces need {', '.join(missing)}"
    probe = subprocess.run(["unshare", "-mpuin", "--fork", "true"], capture_output=True, text=True)
    return f"no namespaces can be made: {probe.stderr.strip()}" if probe.returncode else ""


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


class Machines:
    """`names` are single letters; the first machine leads. `checkout` is the image; `folder` has logs and what S3 keeps."""

    def __init__(self, checkout: Path, folder: Path, names: str = "abc") -> None:
        self.names, self.checkout, self._folder = names, checkout, folder
        self._prefix = f"nb{os.getpid() % 10000}"
        kernels = str(for_kernels(SandboxSettings()).base)
        self._pythons = list(dict.fromkeys([sys.base_prefix, os.path.realpath(sys.base_prefix), kernels]))
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        self.bucket = folder / "s3" / "bucket"
        self.variables = {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": f"http://{NETWORK}.9:{S3_PORT}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def __enter__(self) -> "Machines":
        self.bucket.mkdir(parents=True)
        switch = f"{self._prefix}-switch"
        run("ip", "netns", "add", switch)
        try:
            run("ip", "-n", switch, "link", "set", "lo", "up")
            run("ip", "-n", switch, "link", "add", "br0", "type", "bridge")
            run("ip", "-n", switch, "addr", "add", f"{NETWORK}.9/24", "dev", "br0")
            run("ip", "-n", switch, "link", "set", "br0", "up")
            rclone = str(self.checkout / ".venv/bin/rclone")
            serve = ["serve", "s3", "--auth-key", f"key,{SECRET}", "--addr", f"{NETWORK}.9:{S3_PORT}", str(self.bucket.parent)]
            self._start(["ip", "netns", "exec", switch, rclone, *serve], "s3", {"HOME": str(self._folder)})
            for name in self.names:
                self.boot(name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._inits):
            self.crash(name)
        for process in self._started:
            process.kill()
            process.wait()
        for name in (*self.names, "switch"):
            subprocess.run(["ip", "netns", "del", f"{self._prefix}-{name}"], capture_output=True)

    def address(self, name: str) -> str:
        return f"{NETWORK}.{self.names.index(name) + 1}"

    def boot(self, name: str) -> None:
        """Switch a machine on, from nothing."""
        space, switch, number = f"{self._prefix}-{name}", f"{self._prefix}-switch", self.names.index(name) + 1
        subprocess.run(["ip", "-n", switch, "link", "del", space], capture_output=True)
        subprocess.run(["ip", "netns", "del", space], capture_output=True)
        run("ip", "netns", "add", space)
        run("ip", "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
        run("ip", "link", "set", space, "netns", switch)
        run("ip", "-n", switch, "link", "set", space, "master", "br0", "up")
        # The same after each boot, so that nobody keeps a stale neighbour.
        run("ip", "-n", space, "link", "set", "eth0", "address", f"02:77:00:00:00:{number:02x}")
        run("ip", "-n", space, "link", "set", "lo", "up")
        run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
        run("ip", "-n", space, "link", "set", "eth0", "up")
        hosts = "\\n".join(f"{self.address(each)} machine-{each}" for each in self.names)
        spaces = ["unshare", "-m", "-p", "-u", "-i", "--fork", "--kill-child", "--propagation", "private"]
        command = ["ip", "netns", "exec", space, *spaces, "bash", "-c", BOOT, name, str(self.checkout), hosts, *self._pythons]
        init = self._inits[name] = self._start(command, f"boot-{name}", {})
        deadline = time.monotonic() + BOOT_S
        while subprocess.run(self._inside(name, "test", "-e", "/run/booted"), capture_output=True).returncode:
            assert init.poll() is None, (self._folder / f"boot-{name}.log").read_text()
            assert time.monotonic() < deadline, f"machine {name} does not come up"
            time.sleep(0.1)

    def start_ray(self, resources: dict[str, str] | None = None) -> None:
        """Start Ray on all machines; `resources` as JSON by machine."""
        for name in self.names:
            self.join(name, (resources or {}).get(name, "{}"))

    def join(self, name: str, resources: str = "{}") -> None:
        lead = name == self.names[0]
        where = ["--head", f"--port={RAY_PORT}", "--include-dashboard=false", "--include-log-monitor=false"]
        where = where if lead else [f"--address={self.address(self.names[0])}:{RAY_PORT}"]
        flags = ["--block", "--disable-usage-stats", f"--object-store-memory={STORE}", "--num-cpus=2", f"--resources={resources}"]
        own = [f"--node-ip-address={self.address(name)}", *(["--temp-dir=/tmp/ray"] if lead else [])]
        log = self._folder / f"ray-{name}.log"
        self._start(self._inside(name, "ray", "start", *where, *own, *flags), f"ray-{name}", {})
        deadline = time.monotonic() + RAY_S
        while "Ray runtime started" not in log.read_text(errors="replace"):
            assert time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.2)

    def on(self, name: str, *command: str, limit_s: float = 300, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command on a machine, in the folder /srv/run there. Only who is given `self.variables` reaches S3."""
        return subprocess.run(
            self._inside(name, *command, **variables), capture_output=True, text=True, timeout=limit_s, stdin=subprocess.DEVNULL
        )

    def begin(self, name: str, *command: str, log: str, **variables: str) -> subprocess.Popen[bytes]:
        """The same without waiting for its end."""
        return self._start(self._inside(name, *command, **variables), log, {})

    def unplug(self, name: str) -> None:
        run("ip", "-n", f"{self._prefix}-switch", "link", "set", f"{self._prefix}-{name}", "down")

    def plug(self, name: str) -> None:
        run("ip", "-n", f"{self._prefix}-switch", "link", "set", f"{self._prefix}-{name}", "up")

    def crash(self, name: str) -> None:
        """End every process at once; the kernel closes their connections."""
        init = self._inits.pop(name)
        if (inner := self._inner(init)) is not None:
            os.kill(inner, signal.SIGKILL)
        init.kill()
        init.wait()

    def kill(self, name: str) -> None:
        """Power off: the cable first, so that no packet tells the others."""
        self.unplug(name)
        self.crash(name)

    def processes(self, name: str) -> list[str]:
        """Command lines on a machine, without its own first processes."""
        found = self.on(name, "ps", "-eo", "args=", "--no-headers").stdout.splitlines()
        return [line for line in found if not line.startswith(("bash -c", "sleep 1000", "ps -eo"))]

    def log(self, name: str) -> str:
        """What a command that was begun printed."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def _inside(self, name: str, *command: str, **variables: str) -> list[str]:
        inner = self._inner(self._inits[name])
        assert inner is not None, f"machine {name} is off"
        path = f"{self.checkout}/.venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        given = {
            "PATH": path,
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            **variables,
        }
        place = ["nsenter", "-t", str(inner), "-m", "-n", "-p", "-u", "-i", "--wdns=/srv/run", "--"]
        return [*place, "env", "-i", *(f"{key}={value}" for key, value in given.items()), *command]

    def _inner(self, init: subprocess.Popen[bytes]) -> int | None:
        """The first process inside, which is the child of `unshare`."""
        for _ in range(50):
            found = subprocess.run(["pgrep", "-P", str(init.pid)], capture_output=True, text=True).stdout.split()
            if found:
                return int(found[0])
            if init.poll() is not None:
                return None
            time.sleep(0.05)
        return None

    def _start(self, command: list[str], log: str, variables: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{log}.log").open("wb") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command],  # a machine ends with the tests, however they end
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | variables,
                start_new_session=True,
            )
        self._started.append(process)
        return process
