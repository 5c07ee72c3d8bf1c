"""A deployment whose flow runs do what a file says, one line each, served as `nbrl schedule` does: FOLDER WEBHOOK."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from prefect import flow, task

from nbrl.flows import attempts, automations, upkeep
from nbrl.flows.deployed import visibly
from nbrl.flows.deployments import deployment
from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import EngineError

attempts.FIRST_WAIT_S, attempts.RETRIES, upkeep.EVERY_S, automations.SILENT_S = 1, 2, 2.0, 3600.0


class ScriptOrder(ClosedModel):
    run: str
    folder: str


def taken(folder: Path) -> str:
    """Return the first line of the script, and move it to the lines that were begun."""
    line, _, rest = (folder / "script").read_text().partition("\n")
    (folder / "script").write_text(rest)
    with (folder / "begun").open("a") as file:
        file.write(f"{line}\n")
    return line


@task(persist_result=False)
async def killed() -> None:
    await asyncio.sleep(2)  # its start is reported
    os.kill(os.getpid(), signal.SIGKILL)


@flow(name="iterate", flow_run_name="iterate", persist_result=False)
async def iterate() -> None:
    await killed()


@flow(name="train", flow_run_name="train {order.run}", persist_result=False)
@visibly
async def train(order: ScriptOrder) -> str:
    """Do what the next line of the script says."""
    match line := taken(Path(order.folder)):
        case "fault":
            raise EngineError("an engine ended")
        case "killed":
            await iterate()
        case "waits":
            await asyncio.sleep(600)
    return line


def served(folder: str, webhook: str, cron: str = "0 0 1 1 *") -> None:
    from nbrl.flows.registration import serve

    asyncio.run(automations.keep_automations(webhook))
    serve([deployment(train, "r", ScriptOrder(run="r", folder=folder), cron, "r")])


if __name__ == "__main__":
    from tests.flows import scheduled  # the flow is imported again by its module's name

    scheduled.served(*sys.argv[1:])
