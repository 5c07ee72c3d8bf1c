"""What there is without us: a fresh bubblewrap around `python -m ipykernel_launcher`, started and asked by jupyter_client."""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.filesystem import WORKSPACE, find_bubblewrap, python_root
from nbrl.sandbox.walls.interpreter import for_kernels


class PrefixedProvisioner(LocalProvisioner):  # type: ignore[misc]
    """The stock provisioner with bubblewrap before the command: no network, the same Python root as ours, read-only."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        return await super().launch_kernel([*_bubblewrap(Path(self.parent.connection_file).parent), *cmd], **kwargs)


def _bubblewrap(connection: Path) -> list[str]:
    root = python_root(for_kernels(SandboxSettings()))
    command = [find_bubblewrap(), "--unshare-all", "--die-with-parent", "--clearenv"]
    for name, value in root.environment.items():
        command += ["--setenv", name, value]
    for name in ("bin", "lib", "lib64"):
        path = Path("/", name)
        command += ["--symlink", str(path.readlink()), str(path)] if path.is_symlink() else ["--ro-bind", str(path), str(path)]
    for source, target in root.binds:
        command += ["--ro-bind", source, target]
    command += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", WORKSPACE]
    return [*command, "--bind", str(connection), str(connection), "--chdir", WORKSPACE]


@contextlib.asynccontextmanager
async def stock_kernel() -> AsyncIterator[AsyncKernelClient]:
    """A client of a kernel that has said it is ready."""
    name = "prefixed"
    place = f"{PrefixedProvisioner.__module__}:{PrefixedProvisioner.__name__}"
    entry = EntryPoint(name, place, "jupyter_client.kernel_provisioners")
    KernelProvisionerFactory.instance().provisioners[name] = entry
    with tempfile.TemporaryDirectory() as folder:
        manager = AsyncKernelManager(kernel_name="", transport="ipc", connection_file=f"{folder}/kernel.json")
        argv = [python_root(for_kernels(SandboxSettings())).python[0], "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        metadata = {"kernel_provisioner": {"provisioner_name": name}}
        manager._kernel_spec = KernelSpec(argv=argv, language="python", metadata=metadata)
        await manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=60)
            yield client
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)


async def stock_start(code: str, expected: str) -> float:
    """Milliseconds from nothing to the result of `code`."""
    said: list[str] = []
    began = time.perf_counter()
    async with stock_kernel() as client:
        await client.execute_interactive(code, output_hook=lambda message: said.append(message["content"].get("text", "")))
        taken = (time.perf_counter() - began) * 1000
    if "".join(said) != expected:
        raise RuntimeError(f"the stock kernel answered {said}")
    return taken
