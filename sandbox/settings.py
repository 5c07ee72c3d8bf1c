"""Every limit of a sandboxed kernel."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Protection = Literal["namespaces", "no_network", "no_capabilities", "seccomp", "cgroups"]


class SandboxSettings(BaseModel):
    """Limits of one kernel and of the pool of kernels that a recipe may set; every limit is enforced."""

    INDISPENSABLE: ClassVar[frozenset[Protection]] = frozenset({"namespaces", "no_network", "no_capabilities"})

    model_config = ConfigDict(extra="forbid", frozen=True)

    provisioner: Literal["zygote", "bubblewrap"] = Field(
        "zygote",
        description="zygote forks each kernel from a prepared interpreter; bubblewrap starts a fresh interpreter for each",
    )
    environment: str | None = Field(
        None,
        description="folder of the Python environment whose version and packages kernels have, relative to the repository; when "
        "not set, the one that `make setup` makes, or nbrl's own where there is none",
        json_schema_extra={"decides": False},
    )
    warm: int = Field(2, ge=0, description="clean kernels kept ready ahead of demand", json_schema_extra={"decides": False})
    max_live: int = Field(8, ge=1, description="kernels alive at once, warm ones included", json_schema_extra={"decides": False})

    preload: tuple[str, ...] = Field(
        ("numpy", "numpy.random"), description="modules that the zygote imports ahead of kernels, if installed"
    )

    memory_mb: int = Field(
        512, ge=64, description="private memory of one process; a control group bounds the kernel to this plus its tmpfs plus 64"
    )
    max_processes: int = Field(64, ge=16, description="processes and threads of a kernel, including its own")
    max_open_files: int = Field(256, ge=64, description="open descriptors of one process")
    workspace_mb: int = Field(64, ge=1, description="size of the in-memory workspace, and of /tmp")
    workspace_files: int = Field(4096, ge=16, description="files and folders in the workspace (zygote only)")
    file_mb: int = Field(64, ge=1, description="largest single file")

    output_bytes: int = Field(65536, ge=1024, description="UTF-8 bytes kept of a cell's outputs; the middle is cut")

    call_timeout_s: float = Field(30.0, gt=0, description="time a host call may take before the cell sees an error")
    calls_per_kernel: int = Field(1000, ge=1, description="host calls that one kernel may make in its lifetime")

    collect_file_bytes: int = Field(8 * 1024 * 1024, ge=1, description="largest file collected from a workspace")

    require: tuple[Protection, ...] = Field(
        ("namespaces", "no_network", "no_capabilities", "seccomp"),
        description="protections without which no kernel runs, checked on each; the first three always, cgroups may be added",
    )
    unprivileged_uid: int = Field(65534, ge=1, description="the uid (and gid) that runs kernels when the host is root")

    @model_validator(mode="after")
    def _warm_kernels_live(self) -> Self:
        if self.warm > self.max_live:
            raise ValueError(f"warm ({self.warm}) is more than max_live ({self.max_live}): warm kernels are alive too")
        return self

    @model_validator(mode="after")
    def _walls_stand(self) -> Self:
        if missing := sorted(self.INDISPENSABLE - {*self.require}):
            raise ValueError(f"require leaves out {', '.join(missing)}: no kernel runs without; add it (seccomp may be left out)")
        return self


class KernelLimits(SandboxSettings):
    """All limits: those of a recipe, and those that programs set which use kernels without a run."""

    start_timeout_s: float = Field(
        60.0,
        gt=0,
        description="maximum seconds until a new kernel answers; after that its start has failed",
    )
    cell_timeout_s: float = Field(30.0, gt=0, description="wall time of a cell before it is interrupted")
    interrupt_grace_s: float = Field(2.0, gt=0, description="time an interrupted cell has to end before it is killed")
    image_bytes: int = Field(
        1024 * 1024, ge=0, description="largest PNG image kept of a cell's outputs; a larger one becomes text"
    )
    images: int = Field(4, ge=0, description="images kept of one cell; further ones become text")
    expression_bytes: int = Field(262144, ge=1024, description="largest value of one expression evaluated with a cell")
    message_bytes: int = Field(
        2 * 1024 * 1024, ge=1024 * 1024, description="largest kernel message; a larger one ends the kernel"
    )
    call_bytes: int = Field(1024 * 1024, ge=1024, description="largest request or answer of a host call")
    calls_per_s: float = Field(
        50.0, gt=0, description="host calls per second, after a burst of the same number; further calls wait"
    )
    loopback: bool = Field(
        False, description="whether TCP is there, for a program that asks a port of its own; there is no network behind it"
    )
    program: str | None = Field(None, description="folder of this machine that kernels find at /opt/program, to be read only")
    collect_files: int = Field(64, ge=0, description="files collected from one workspace")
    collect_bytes: int = Field(32 * 1024 * 1024, ge=1, description="bytes collected from one workspace")

    @classmethod
    def of(cls, settings: SandboxSettings) -> Self:
        """Return the limits with these settings, or the settings themselves if they are limits."""
        return settings if isinstance(settings, cls) else cls(**dict(settings))

    @model_validator(mode="after")
    def _messages_hold_what_is_kept(self) -> Self:
        # A picture comes as base64, a reply with all its expressions; either comes with some words around it.
        for name, size in (("image_bytes", 4 * self.image_bytes // 3), ("expression_bytes", self.expression_bytes)):
            if size + 65536 > self.message_bytes:
                raise ValueError(
                    f"{name} does not fit into a message of message_bytes ({self.message_bytes}): raise message_bytes"
                )
        return self
