"""A flow run that is killed or meets a fault begins again, and Prefect's rows and reports say what happened."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import FlowRun

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from tests.agent.tool_server import Said, Server, serving

pytestmark = [pytest.mark.e2e, pytest.mark.more]
T = TypeVar("T")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    server = prefect_server.ensure(Home(tmp_path / "home"))
    yield server.url
    server.stop()


@pytest.fixture
def webhook() -> Iterator[Server]:
    with serving(Said({})) as server:
        yield server


def asked(server: str, question: Callable[[PrefectClient], Awaitable[T]]) -> T:
    async def ask() -> T:
        async with PrefectClient(f"{server}/api") as client:
            return await question(client)

    return asyncio.run(ask())


def runs(server: str) -> list[FlowRun]:
    """Return the flow runs that began, or are due, in the order in which they were made."""
    found = asked(server, lambda client: client.read_flow_runs())
    return sorted(found, key=lambda run: str(run.created))


def shown(server: str) -> list[tuple[str, str]]:
    return [(run.name, run.state_name or "") for run in runs(server)]


def began(server: str) -> list[tuple[str, str]]:
    return [row for row in shown(server) if not row[0].startswith("r, due ")]


def reports(webhook: Server) -> list[dict[str, str]]:
    """Return what was reported. Prefect sends a report again when it could not note that it was sent."""
    found = [asked.body for asked in webhook.asked]
    return [report for number, report in enumerate(found) if report not in found[:number]]


def until(true: Callable[[], object], webhook: Server | None = None) -> None:
    end = time.monotonic() + 180
    while not true():
        assert time.monotonic() < end, f"it did not happen; reported: {reports(webhook) if webhook else 'not asked'}"
        time.sleep(0.5)


def begin(server: str, **order: str) -> None:
    """Run the deployment by hand, with another `order` where one is given."""

    async def create(client: PrefectClient) -> None:
        deployment = await client.read_deployment_by_name("train/r")
        parameters = {"order": deployment.parameters["order"] | order}
        await client.create_flow_run_from_deployment(deployment.id, name="by hand", parameters=parameters)

    asked(server, create)


@pytest.fixture
def schedule(tmp_path: Path, server: str, webhook: Server, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves `tests.flows.scheduled`, as `nbrl schedule` serves; the parameter is its cron."""
    line = [sys.executable, "-m", "tests.flows.scheduled", str(tmp_path), webhook.url, *getattr(request, "param", ())]
    with (tmp_path / "schedule.log").open("wb") as log:
        served = subprocess.Popen(
            line, env=os.environ | prefect_server.environment(Home(tmp_path / "home"), server), stdout=log, stderr=log
        )
    yield served
    if served.poll() is None:
        served.kill()
        served.wait()


@pytest.mark.timeout(900)
def test_what_failed_or_was_killed_begins_again_and_prefect_shows_and_reports_each_once(
    tmp_path: Path, server: str, webhook: Server, schedule: subprocess.Popen[bytes]
) -> None:
    script, begun = tmp_path / "script", tmp_path / "begun"

    def work(*lines: str) -> None:
        """Run the deployment with this script, until nothing is under way."""
        script.write_text("".join(f"{line}\n" for line in lines))
        begun.write_text("")
        begin(server, run="other")
        until(lambda: begun.read_text().split() == [*lines] and script.read_text() == "")
        until(lambda: not {"Running", "Pending", "Scheduled"} & {state for _, state in began(server)})

    until(lambda: any(name.startswith("r, due ") for name, _ in shown(server)))
    work("fault", "killed", "done")
    rows = [("train other", "Retrying"), ("train other", "Crashed"), ("iterate", "Crashed"), ("train other", "Completed")]
    assert began(server) == rows
    until(lambda: {task.state_name for task in asked(server, lambda client: client.read_task_runs())} == {"Crashed"})
    assert [(report["run"], report["state"]) for report in reports(webhook)] == [("other", "Crashed")]

    work("killed", "killed", "killed")
    rows += [("train other", "Crashed"), ("iterate", "Crashed")] * 3 + [("train other", "Failed")]
    until(lambda: began(server) == rows)
    until(lambda: len(reports(webhook)) == 5, webhook)
    states = sorted((report["state"], report["reason"]) for report in reports(webhook))
    assert [state for state, _ in states] == ["Crashed"] * 4 + ["Failed"]
    assert "killed 3 times in a row" in states[-1][1]

    script.write_text("waits\n")
    begin(server)
    until(lambda: begun.read_text().endswith("waits\n"))
    begin(server)  # refused, and no row is left of it
    until(lambda: len(shown(server)) == len(rows) + 3)
    until(lambda: began(server) == [*rows, ("train r", "Running")])
    schedule.send_signal(signal.SIGINT)
    schedule.wait(120)
    assert began(server) == [*rows, ("train r", "Cancelled")]
    time.sleep(2)
    assert len(reports(webhook)) == 5  # that it was ended is no failure


@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", [["* * * * *"]], indirect=True)
def test_a_flow_run_that_a_schedule_made_a_minute_ago_is_reported_and_begun_again_at_once(
    tmp_path: Path, server: str, webhook: Server, schedule: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "script").write_text("killed\n" + "done\n" * 9)
    until(lambda: ("train r", "Crashed") in shown(server))
    until(
        lambda: [report["state"] for report in reports(webhook)] == ["Crashed"]
    )  # not after the quarter of an hour for which Prefect may hold its event back
    until(lambda: any(run.created_by and run.created_by.type == "AUTOMATION" for run in runs(server)))
    schedule.send_signal(signal.SIGINT)
    schedule.wait(120)
