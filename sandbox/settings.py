"""Every limit of a sandboxed kernel, in one typed place."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Protection = Literal["namespaces", "no_network", "no_capabilities", "seccomp", "cgroups"]


class SandboxSettings(BaseModel):
    """Limits of one kernel and of the pool that hands kernels out; each field acts, none is a hint."""

    INDISPENSABLE: ClassVar[frozenset[Protection]] = frozenset({"namespaces", "no_network", "no_capabilities"})

    model_config = ConfigDict(extra="forbid", frozen=True)

    provisioner: Literal["zygote", "bubblewrap"] = Field(
        "zygote", description="zygote forks prepared kernels; bubblewrap starts a fresh interpreter for each"
    )
    warm: int = Field(2, ge=0, description="clean kernels kept ready ahead of demand", json_schema_extra={"decides": False})
    max_live: int = Field(8, ge=1, description="kernels alive at once, warm ones included", json_schema_extra={"decides": False})
    start_timeout_s: float = Field(
        60.0, gt=0, description="a kernel that has not answered by then did not start", json_schema_extra={"decides": False}
    )

    preload: tuple[str, ...] = Field(("numpy", "numpy.random"), description="modules the zygote imports ahead, where installed")

    cell_timeout_s: float = Field(30.0, gt=0, description="wall time of a cell before it is interrupted")
    interrupt_grace_s: float = Field(2.0, gt=0, description="time an interrupted cell has to end before it is killed")

    memory_mb: int = Field(
        512, ge=64, description="private memory of one process; its control group bounds the kernel: this, its tmpfs and 64"
    )
    max_processes: int = Field(64, ge=16, description="processes and threads of a kernel, its own included")
    max_open_files: int = Field(256, ge=64, description="open descriptors of one process")
    workspace_mb: int = Field(64, ge=1, description="size of the in-memory workspace, and again of /tmp")
    workspace_files: int = Field(4096, ge=16, description="files and folders in the workspace (zygote only)")
    file_mb: int = Field(64, ge=1, description="largest single file")

    output_bytes: int = Field(65536, ge=1024, description="UTF-8 bytes kept of a cell's outputs; the middle is cut")
    image_bytes: int = Field(1024 * 1024, ge=0, description="largest PNG picture kept of a cell's outputs; a larger one is text")
    images: int = Field(4, ge=0, description="pictures kept of one cell; the others are text")
    expression_bytes: int = Field(262144, ge=1024, description="largest value of one expression asked with a cell")
    message_bytes: int = Field(
        2 * 1024 * 1024, ge=1024 * 1024, description="largest kernel message; a larger one ends the kernel"
    )

    call_timeout_s: float = Field(30.0, gt=0, description="time a host call may take before the cell sees an error")
    call_bytes: int = Field(1024 * 1024, ge=1024, description="largest request or answer of a host call")
    calls_per_kernel: int = Field(1000, ge=1, description="host calls one kernel may make in its life")
    calls_per_s: float = Field(50.0, gt=0, description="host calls a second, after a burst of as many; more of them wait")

    collect_files: int = Field(64, ge=0, description="files taken out of one workspace")
    collect_file_bytes: int = Field(8 * 1024 * 1024, ge=1, description="largest file taken out of a workspace")
    collect_bytes: int = Field(32 * 1024 * 1024, ge=1, description="bytes taken out of one workspace")

    require: tuple[Protection, ...] = Field(
        ("namespaces", "no_network", "no_capabilities", "seccomp"),
        description="protections without which no kernel runs, looked for on each; the first three always, cgroups may be added",
    )
    unprivileged_uid: int = Field(65534, ge=1, description="the uid (and gid) that runs kernels when the host is root")

    @model_validator(mode="after")
    def _warm_kernels_live(self) -> Self:
        if self.warm > self.max_live:
            raise ValueError(f"warm ({self.warm}) is more than max_live ({self.max_live}): warm kernels are alive too")
        return self

    @model_validator(mode="after")
    def _messages_hold_what_is_kept(self) -> Self:
        # A picture comes as base64, a reply with all its expressions; either comes with some words around it.
        for name, size in (("image_bytes", 4 * self.image_bytes // 3), ("expression_bytes", self.expression_bytes)):
            if size + 65536 > self.message_bytes:
                raise ValueError(
                    f"{name} does not fit into a message of message_bytes ({self.message_bytes}): raise message_bytes"
                )
        return self

    @model_validator(mode="after")
    def _walls_stand(self) -> Self:
        if missing := sorted(self.INDISPENSABLE - {*self.require}):
            raise ValueError(f"require leaves out {', '.join(missing)}: no kernel runs without; add it (seccomp may be left out)")
        return self
