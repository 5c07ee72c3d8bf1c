"""Standard Jupyter clients, and the parts of ipykernel that the prepared kernel leans on."""

import ast
import asyncio
import contextlib
import inspect
import textwrap
from importlib.metadata import EntryPoint, entry_points

import ipykernel
import pytest
from ipykernel.iostream import IOPubThread, OutStream
from ipykernel.ipkernel import IPythonKernel
from IPython.core.interactiveshell import InteractiveShell
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from zmq.eventloop.zmqstream import ZMQStream

from nbrl.sandbox.provisioner import BubblewrapProvisioner, ZygoteProvisioner
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox


def test_a_standard_client_can_talk_to_a_kernel(lab: Lab) -> None:
    async def run() -> tuple[str, list[str], bool]:
        provisioner = f"nbrl-{lab.provisioner}"
        # Said here too, so that the test does not depend on when the environment was installed.
        place = (
            "nbrl.sandbox.provisioner:" + {"zygote": "ZygoteProvisioner", "bubblewrap": "BubblewrapProvisioner"}[lab.provisioner]
        )
        entry = EntryPoint(provisioner, place, "jupyter_client.kernel_provisioners")
        KernelProvisionerFactory.instance().provisioners[provisioner] = entry
        manager = AsyncKernelManager(kernel_name="")
        metadata = {"kernel_provisioner": {"provisioner_name": provisioner, "config": {"memory_mb": 400}}}
        manager._kernel_spec = KernelSpec(argv=["unused"], language="python", metadata=metadata)
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        try:
            await client.wait_for_ready(timeout=60)
            said: list[str] = []
            code = "print('hello')\nimport resource\nprint(resource.getrlimit(resource.RLIMIT_DATA)[0] >> 20)\n1 / 0"
            reply = await client.execute_interactive(
                code, timeout=30, output_hook=lambda message: said.append(str(message["content"]))
            )
            assert await manager.is_alive()
            # An error aborts what is queued, then the kernel goes on.
            again = await client.execute_interactive("2 + 2", timeout=30, output_hook=lambda message: None)
            assert again["content"]["status"] == "ok"
            refused = await client.execute_interactive("host_call('x')", timeout=30, output_hook=lambda message: None)
            assert "the host does not answer" in refused["content"]["evalue"]
            beats = await client._async_is_alive()
            await manager.interrupt_kernel()
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
        return reply["content"]["status"], said, beats

    status, said, beats = asyncio.run(run())
    assert status == "error"
    assert any("hello\\n400" in text for text in said)
    assert any("ZeroDivisionError" in text for text in said)
    assert beats


@pytest.mark.parametrize("owner", [BubblewrapProvisioner, ZygoteProvisioner])
@pytest.mark.parametrize("field", ["memori_mb", "warm", "cell_timeout_s"])
def test_a_kernel_spec_with_what_would_not_act_is_refused(owner: type[BubblewrapProvisioner], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        owner(**{field: 3})
    assert owner(memory_mb=100).settings.memory_mb == 100


def test_the_provisioners_are_registered() -> None:
    found = {entry.name: entry.load() for entry in entry_points(group="jupyter_client.kernel_provisioners")}
    assert found["nbrl-bubblewrap"] is BubblewrapProvisioner
    if "nbrl-zygote" not in found:
        pytest.skip("the environment was installed before the entry point was added")
    assert found["nbrl-zygote"] is ZygoteProvisioner


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            IPythonKernel,
            [
                "_supports_kernel_subshells",
                "_execute_sleep",
                "_control_lock",
                "shell_main",
                "dispatch_control",
                "_cancel_on_sigint",
            ],
        ),
        (
            IPythonKernel,
            ["stdin_socket", "control_stream", "shell_stream", "iopub_socket", "iopub_thread", "shell_channel_thread"],
        ),
        (IOPubThread, ["background_socket", "schedule", "_really_send", "_thread_main", "_master_pid", "io_loop", "socket"]),
        (IOPubThread, ["_setup_event_pipe", "_setup_xpub_listener", "_handle_subscription"]),
        (OutStream, ["_flush", "_schedule_flush", "_flush_pending", "_buffers", "_buffer_lock", "fileno", "write"]),
        (OutStream, ["_parent_header_global", "_io_loop"]),
        (ZMQStream, ["_rebuild_io_state"]),
        (InteractiveShell, ["transform_cell", "should_run_async", "run_cell_async"]),
    ],
)
def test_ipykernel_still_has_what_the_prepared_kernel_leans_on(owner: type, names: list[str]) -> None:
    # A class's own attributes, and those that its methods give to an instance.
    there = {*dir(owner)}
    for base in owner.__mro__[:-1]:
        with contextlib.suppress(OSError, TypeError):
            for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(base)))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                    there.add(node.attr)
    missing = sorted({*names} - there)
    assert not missing, (
        f"ipykernel {ipykernel.__version__} or its zmq has no {missing} in {owner.__name__}: sandbox/inside/ builds a kernel "
        "from these parts and must follow before the version is raised (or use provisioner=bubblewrap meanwhile)"
    )
