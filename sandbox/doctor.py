"""Checks whether and how well this machine can confine a kernel. Each check really does what it names."""

import asyncio
import subprocess
from collections.abc import Mapping

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.pool import one_kernel
from nbrl.sandbox.settings import KernelLimits, Protection, SandboxSettings
from nbrl.sandbox.start import fresh
from nbrl.sandbox.start.zygote import Zygote
from nbrl.sandbox.walls.filesystem import find_bubblewrap
from nbrl.sandbox.walls.interpreter import for_kernels
from nbrl.sandbox.walls.protections import MEANINGS

Check = tuple[str, bool, str]


def _bubblewrap() -> Check:
    try:
        path = find_bubblewrap()
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=10)
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        return "bubblewrap", False, str(error)
    return "bubblewrap", True, f"{version.stdout.strip()} at {path}"


def _namespaces() -> Check:
    name = "user namespaces"
    arguments = ["--unshare-user", "--unshare-all", "--disable-userns", "--ro-bind", "/", "/", "--proc", "/proc"]
    try:
        command = [find_bubblewrap(), *arguments, "/bin/true"]
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    except subprocess.CalledProcessError as error:
        fix = "allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)"
        return name, False, f"bwrap could not make its namespaces: {error.stderr.strip()}; {fix}"
    except (SandboxError, OSError, subprocess.SubprocessError) as error:
        return name, False, str(error)
    return name, True, "user, pid, mount, network, ipc, uts and cgroup namespaces work"


def _kernel(settings: SandboxSettings) -> Check:
    name = f"{settings.provisioner} kernel"
    try:
        asyncio.run(one_kernel(settings))
        python = for_kernels(settings).executable
    except (SandboxError, OSError) as error:
        return name, False, str(error)
    return name, True, f"a confined kernel with {python} starts, answers and ends"


async def _lacking(settings: SandboxSettings) -> Mapping[Protection, str]:
    """Return the protections that a real kernel lacks if only the mandatory ones are required."""
    lenient = KernelLimits.of(settings).model_copy(update={"require": tuple(SandboxSettings.INDISPENSABLE)})
    if settings.provisioner == "bubblewrap":
        process = await fresh.start_kernel(lenient)
        await process.end()
        return process.lacking
    zygote = await Zygote.start(lenient)
    try:
        process = await zygote.fork()
        await process.end()
    finally:
        await zygote.end()
    return process.lacking


def _protections(settings: SandboxSettings) -> list[Check]:
    """Return one check for each protection: present, missing but not required (which works), or required and missing."""
    try:
        missing = asyncio.run(_lacking(settings))
    except (SandboxError, OSError) as error:
        return [("protections", False, str(error))]
    checks: list[Check] = []
    for name, meaning in MEANINGS.items():
        if name not in missing:
            checks.append((name, True, meaning.present))
        elif name in settings.require:
            checks.append(
                (name, False, f"required and missing ({missing[name]}): {meaning.fix}, or do without: {meaning.absent}")
            )
        else:
            checks.append((name, True, f"weaker here, and allowed: {meaning.absent} ({missing[name]}); to fix it {meaning.fix}"))
    return checks


def boundary() -> list[Check]:
    """Return the quick checks that there is a boundary at all, without starting a kernel."""
    return [_bubblewrap(), _namespaces()]


def checks(settings: SandboxSettings) -> list[Check]:
    """Return all checks as (name, works, result or how to fix it), in the order in which to fix them."""
    quick = boundary()
    zygote = _kernel(settings.model_copy(update={"provisioner": "zygote"}))
    fresh_kernel = _kernel(settings.model_copy(update={"provisioner": "bubblewrap"}))
    if fresh_kernel[1] and not zygote[1]:
        # Namespaces within namespaces may be forbidden where the outer ones are allowed.
        zygote = (*zygote[:2], f"{zygote[2]}; set nbrl.sandbox.provisioner to bubblewrap, which is slower")
    return [*quick, zygote, fresh_kernel, *_protections(settings)]
