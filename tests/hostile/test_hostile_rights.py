"""Rights: become another user, raise one's limits and priority, change the system's settings"""

import os
from pathlib import Path

import pytest

from tests.hostile.arena import Arena, Kernel
from tests.hostile.canaries import process

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="Write to /proc/sys, core_pattern, sysrq-trigger and everything else below /proc that is not the kernel's own",
    wall="no capabilities, uid that is not root of any namespace",
    effect="the host's settings are unchanged; at most those of the kernel's own IPC and pid namespaces",
)
def test_kernel_settings_cannot_be_written(victim: Kernel) -> None:
    code = """
written = []
def rewrite(path):
    try:
        with open(path, "rb+", buffering=0, opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            value = file.read(65536).strip()
            file.write(b"%d" % (int(value) - 1) if value.isdigit() else value or b"0")
        written.append(path)
    except OSError:
        pass
for top in ("/proc/sys", "/proc/irq", "/proc/fs", "/proc/bus", "/proc/driver", "/proc/tty", "/proc/acpi", "/proc/scsi"):
    for folder, _, names in os.walk(top):
        for name in names:
            rewrite(os.path.join(folder, name))
for name in os.listdir("/proc"):
    if os.path.isfile("/proc/" + name):
        rewrite("/proc/" + name)
attempt("sysrq", lambda: os.write(os.open("/proc/sysrq-trigger", os.O_WRONLY), b"h"))
"""
    names = [
        f"/proc/sys/kernel/{name}" for name in ("shmmax", "shmall", "shmmni", "shm_rmid_forced", "msgmax", "msgmnb", "msgmni")
    ]
    names += ["/proc/sys/kernel/sem", "/proc/sys/kernel/auto_msgmni", "/proc/sys/kernel/pid_max"]
    names += [str(path) for path in Path("/proc/sys/fs/mqueue").glob("*")]
    before = {name: Path(name).read_text() for name in names}
    victim.refused(code)
    written = victim.text("print(*written)")
    # Newer systems let a namespace set its own queues and numbers, which end with it.
    assert set(written.split()) <= set(names)
    assert {name: Path(name).read_text() for name in names} == before


@pytest.mark.attack(
    tried="Become another user by setuid programs, uid maps, setuid and setgroups",
    wall="nosuid mounts, no_new_privs, a user namespace with one uid",
    effect="every program stays uid 1000 without capabilities, on the host the unprivileged uid",
)
def test_no_program_gives_another_uid(arena: Arena, victim: Kernel) -> None:
    code = """
import shutil
for path, text in (("uid_map", "0 0 1"), ("gid_map", "0 0 1"), ("setgroups", "allow"), ("projid_map", "0 0 1")):
    attempt(path, lambda: open("/proc/self/" + path, "w").write(text) and open("/proc/self/" + path).read().index("0 0"))
for name, action in (("setuid", os.setuid), ("setgid", os.setgid), ("setreuid", lambda uid: os.setreuid(uid, uid))):
    attempt(name, action, 0)
attempt("setgroups", os.setgroups, [0])
attempt("setresuid", os.setresuid, 65534, 65534, 65534)
attempt("chown", os.chown, ".", 0, 0)
programs = [os.path.join(folder, name) for folder in ("/usr/bin", "/usr/sbin", "/usr/lib/openssh") if os.path.isdir(folder)
            for name in os.listdir(folder)]
programs = [path for path in programs if os.path.exists(path) and os.stat(path).st_mode & 0o6000]
shutil.copy("/bin/cat", "/workspace/mine")
os.chmod("/workspace/mine", 0o6755)
identities = set()
for path in [*programs, "/workspace/mine"]:
    child = subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with open(f"/proc/{child.pid}/status") as status:
        identities.add(tuple(line.strip() for line in status if line.startswith(("Uid", "Gid", "CapEff", "CapPrm"))))
    child.kill()
    child.communicate()
"""
    victim.refused(code)
    ids = "\\t1000\\t1000\\t1000\\t1000"
    zero = "\\t0000000000000000"
    assert victim.text("print(identities)") == f"{{('Uid:{ids}', 'Gid:{ids}', 'CapPrm:{zero}', 'CapEff:{zero}')}}\n"
    uid = arena.settings.unprivileged_uid if os.geteuid() == 0 else os.getuid()
    owners = {Path(f"/proc/{pid}").stat().st_uid for pid in arena.victims_processes()}
    assert owners - {0} <= {uid}


@pytest.mark.attack(
    tried="Run a program from memory (memfd, fexecve) and from the workspace",
    wall="it is allowed, and runs behind the same walls",
    effect="it reads no more than a cell does",
)
def test_a_program_from_memory_has_no_more_rights(arena: Arena, victim: Kernel) -> None:
    code = """
descriptor = os.memfd_create("cat")
os.write(descriptor, open("/bin/cat", "rb").read())
command = [f"/proc/self/fd/{{descriptor}}", {canary!r}, "/proc/self/status"]
done = subprocess.run(command, pass_fds=[descriptor], capture_output=True)
print(done.returncode, *(line in done.stdout for line in (b"Seccomp:\\t2", b"NoNewPrivs:\\t1", b"CapEff:\\t0000000000000000")))
"""
    assert victim.text(code.format(canary=str(arena.canaries.file))) == "1 True True True\n"


@pytest.mark.attack(
    tried="Raise one's own limits, priority, scheduling class, oom_score_adj, dumpability",
    wall="hard limits set before the first cell, no capabilities",
    effect="the host sees the same limits, no realtime class, no better priority, no protection from the OOM killer",
)
def test_limits_and_priority_cannot_be_raised(arena: Arena, victim: Kernel) -> None:
    before = [process(pid) for pid in arena.victims_processes()]
    code = """
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        kind = getattr(resource, name)
        soft, hard = resource.getrlimit(kind)
        if hard != resource.RLIM_INFINITY:
            attempt(name, resource.setrlimit, kind, (hard, hard + 1))
            attempt(name, resource.prlimit, 0, kind, (soft, resource.RLIM_INFINITY))
attempt("nice", os.nice, -1)
attempt("priority", os.setpriority, os.PRIO_PROCESS, 0, -5)
for policy in (os.SCHED_FIFO, os.SCHED_RR):
    attempt("realtime", os.sched_setscheduler, 0, policy, os.sched_param(1))
attempt("deadline", system, 314, 0, struct.pack("IIQiIQQQ", 48, 6, 0, 0, 0, 10**7, 10**8, 10**8), 0)
attempt("io", system, 251, 1, 0, 1 << 13)
def protect():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-900")
attempt("oom", protect)
print(open("/proc/self/oom_score_adj").read())
attempt("cgroup", lambda: open("/sys/fs/cgroup/cgroup.procs", "w").write("1"))
"""
    victim.refused(code)
    after = {known.pid: known for known in map(process, arena.victims_processes()) if known is not None}
    for known in before:
        assert known is not None
        assert after[known.pid].limits == known.limits
        assert (after[known.pid].policy, after[known.pid].nice) == (0, known.nice)
        assert int(after[known.pid].oom_score_adj) >= int(known.oom_score_adj)
    assert victim.said[-1].count("'500") == 1
    for pid in after:
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert "Max realtime priority     0" in limits or "launcher" in Path(f"/proc/{pid}/cmdline").read_text()
