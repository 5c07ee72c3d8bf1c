"""Protections are looked at from outside on real processes; one that is required and missing stops the kernel."""

import contextlib
import os
import platform
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest
from pydantic import ValidationError

from nbrl.sandbox import doctor
from nbrl.sandbox.errors import SandboxError, SandboxUnavailable
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import protections
from tests.sandbox.machines import run_in
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox

WITHOUT_SECCOMP = tuple(SandboxSettings.INDISPENSABLE)
MASK = 'print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("Seccomp:", "NoNewPrivs:"))])'


def test_a_kernel_of_this_machine_lacks_nothing_that_is_required(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> set[str]:
        return {*kernel._process.lacking}

    assert not lab.with_kernel(body) & {*SandboxSettings().require}


@pytest.mark.parametrize("name", sorted(SandboxSettings.INDISPENSABLE))
def test_the_walls_that_everything_leans_on_cannot_be_given_up(name: str) -> None:
    with pytest.raises(ValidationError, match=f"require leaves out {name}: no kernel runs without"):
        SandboxSettings(require=tuple({*SandboxSettings().require} - {name}))  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        SandboxSettings(require=(*SandboxSettings().require, "firewall"))  # type: ignore[arg-type]


@pytest.mark.more
def test_without_a_filter_kernels_run_only_where_it_is_not_required(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match=r"without seccomp \(.*riscv64\).*or take seccomp out of sandbox\.require"):
        lab.cells("1")

    async def body(kernel: SandboxKernel) -> tuple[list[str], str]:
        return list(kernel._process.lacking), (await kernel.execute(MASK)).outputs[0].text

    lacking, said = lab.with_kernel(body, require=WITHOUT_SECCOMP)
    assert lacking == ["seccomp"] or lacking == ["seccomp", "cgroups"]
    assert said == "['1', '0']\n"
    found = {name: (works, text) for name, works, text in doctor.checks(lab.settings(require=WITHOUT_SECCOMP))}
    assert found["seccomp"][0]
    assert found["seccomp"][1].startswith("weaker here, and allowed")
    strict = {name: (works, text) for name, works, text in doctor.checks(lab.settings())}
    assert not strict["seccomp"][0]
    assert strict["seccomp"][1].startswith("required and missing")


def test_where_there_is_a_filter_it_is_used_though_not_required(lab: Lab) -> None:
    assert lab.value(MASK, require=WITHOUT_SECCOMP) == "['1', '2']\n"


def test_a_newborn_that_is_found_unprotected_is_killed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the filter got lost on its way.
    monkeypatch.setattr("nbrl.sandbox.start.bubblewrap._filter", lambda settings: b"")
    killed: list[int] = []
    send = signal.pidfd_send_signal
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda pidfd, number: (killed.append(number), send(pidfd, number)))
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SandboxUnavailable, match="without seccomp"):
        lab.cells("1")
    assert killed[0] == signal.SIGKILL
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


@contextlib.contextmanager
def process(*command: str) -> Iterator[int]:
    """A pidfd of a process that said a line."""
    with subprocess.Popen([*command, "sh", "-c", "echo; read x"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        pidfd = os.pidfd_open(started.pid)
        try:
            yield pidfd
        finally:
            os.close(pidfd)
            started.kill()


def test_an_ordinary_process_lacks_all_of_them() -> None:
    with process() as pidfd:
        missing = protections.lacking(pidfd, None)
    assert {*missing} == {*protections.MEANINGS}
    assert missing["namespaces"] == "shared with the host: user, pid, mnt, net, ipc, uts, cgroup"
    assert "NoNewPrivs 0" in missing["no_capabilities"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
@pytest.mark.parametrize(
    ("flags", "present"),
    [
        (["--net"], {"no_network"}),
        (["--net", "--user", "--ipc", "--uts", "--cgroup", "--mount"], {"no_network"}),
    ],
)
def test_half_a_wall_is_told_from_a_whole_one(flags: list[str], present: set[str]) -> None:
    with process("unshare", *flags) as pidfd:
        missing = protections.lacking(pidfd, None)
    assert {*protections.MEANINGS} - {*missing} == present
    assert "pid" in missing["namespaces"]
    for flag in flags:
        assert not re.search(rf"\b{flag.removeprefix('--').replace('mount', 'mnt')}\b", missing["namespaces"])


def test_a_process_that_ended_is_never_found_well() -> None:
    with process() as pidfd:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
        with pytest.raises(SandboxError, match="ended"):
            protections.lacking(pidfd, None)


def test_descriptors_are_raised_to_what_the_pool_needs_or_refused(lab: Lab) -> None:
    script = f"""
import asyncio, resource
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.pool import one_kernel
from nbrl.sandbox.settings import SandboxSettings
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
settings = SandboxSettings(provisioner={lab.provisioner!r}, warm=0, max_live=4)
asyncio.run(one_kernel(settings))
print(64 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= 256)
try:
    asyncio.run(one_kernel(settings.model_copy(update={{"max_live": 100}})))
except SandboxError as error:
    print(error)
"""
    raised, refused = run_in("few descriptors", script).splitlines()
    assert raised == "True"
    assert "max_live" in refused
    assert "ulimit -n" in refused
