"""Runs deployments on this machine when they are due."""

import asyncio
import signal

from prefect.deployments.runner import RunnerDeployment
from prefect.runner import Runner

QUERY_S = 5.0


def serve(deployments: list[RunnerDeployment]) -> None:
    """Serve until SIGINT or SIGTERM; end the flow runs that are under way, and pause the schedules."""
    asyncio.run(_serve(deployments))


async def _serve(deployments: list[RunnerDeployment]) -> None:
    runner = Runner(name="nbrl", query_seconds=QUERY_S, limit=None, pause_on_shutdown=True)
    for each in deployments:
        each.paused = False
        await runner.aadd_deployment(each)
    running = asyncio.create_task(runner.start())
    asked = asyncio.Event()
    await asyncio.sleep(0)  # the runner takes SIGTERM when it starts
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    waiting = asyncio.create_task(asked.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not running.done():
        await runner.astop()
    await running
    if asked.is_set():
        raise KeyboardInterrupt
