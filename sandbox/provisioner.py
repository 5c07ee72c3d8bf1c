"""Sandboxed kernels for any Jupyter client: name `nbrl-bubblewrap` or `nbrl-zygote` as the provisioner in a kernel spec.

The command of the kernel spec is not run, and neither its variables nor those of this process are passed on: the kernel is the
ipykernel of the environment that kernels have (docs/sandbox.md).
"""

from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import KernelProvisionerBase

from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.start import fresh
from nbrl.sandbox.start.kernel_process import KernelProcess
from nbrl.sandbox.start.zygote import Zygote

# Settings of the pool and its client do not apply to a kernel with another client.
_ACTING = {
    "environment", "start_timeout_s", "preload", "memory_mb", "max_processes", "max_open_files", "workspace_mb",
    "workspace_files", "file_mb", "output_bytes", "image_bytes", "message_bytes", "require", "unprivileged_uid",
}  # fmt: skip


class BubblewrapProvisioner(KernelProvisionerBase):  # type: ignore[misc]
    """A fresh interpreter in its own bubblewrap for each kernel. The `config` of the kernel spec's metadata may hold
    the fields of KernelLimits that are about the kernel itself. Raises ValueError for any other."""

    def __init__(self, **given: Any) -> None:
        fields = {name: given.pop(name) for name in given.keys() - {*self.class_trait_names()}}
        self.settings = KernelLimits.model_validate(fields)
        if idle := sorted(fields.keys() - _ACTING):
            raise ValueError(f"{', '.join(idle)}: acts in a KernelPool only; take it out of the kernel spec's config")
        super().__init__(**given)
        self._process: KernelProcess | None = None

    @property
    def has_process(self) -> bool:
        return self._process is not None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        # The base class would copy our environment, to which the kernel has no right.
        return {"cmd": []}

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        self._process = await self._start()
        # No handler answers calls here; host_call fails at once instead of waiting forever.
        self._process.channel.close()
        self.connection_info = self._process.address.connection_info()
        return self.connection_info

    async def _start(self) -> KernelProcess:
        return await fresh.start_kernel(self.settings)

    async def poll(self) -> int | None:
        # A kernel that is not a child of this process has no exit status; 1 means that it has ended.
        return None if self._process is not None and not self._process.gone.is_set() else 1

    async def wait(self) -> int | None:
        if self._process is not None:
            await self._process.gone.wait()
            await self._process.end()
            self._process = None
        return 1

    async def send_signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)

    async def kill(self, restart: bool = False) -> None:
        if self._process is not None:
            await self._process.end()

    async def terminate(self, restart: bool = False) -> None:
        # A kernel is the first process of its namespace and ignores SIGTERM; nothing in it is worth saving.
        await self.kill(restart)

    async def cleanup(self, restart: bool = False) -> None:
        await self.kill(restart)

    def resolve_path(self, path: str) -> str | None:
        """Return the path of the host for one inside: always None."""
        return None


class ZygoteProvisioner(BubblewrapProvisioner):
    """A fork of a zygote. Each provisioner has a zygote of its own, so a restart is fast and the first start is not;
    `KernelPool` is what shares one between many kernels."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._zygote: Zygote | None = None

    async def _start(self) -> KernelProcess:
        if self._zygote is None or not self._zygote.alive:
            self._zygote = await Zygote.start(self.settings)
        return await self._zygote.fork()

    async def cleanup(self, restart: bool = False) -> None:
        await super().cleanup(restart)
        if self._zygote is not None and not restart:
            await self._zygote.end()
            self._zygote = None
