"""How a deployed flow ends in Prefect: skipped, stopped, failed at once, or tried again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.lease import Lease
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.stop import stop

pytestmark = [pytest.mark.process, pytest.mark.more]

BEFORE = """
import asyncio, json, sys
from nbrl.flows import deployed
from nbrl.flows.deployed import TrainOrder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.writer import writing
from nbrl.tasks.runs.run import known_run

root = sys.argv[1]
tries = []

async def held(*given, **more):
    tries.append(1)
    storage = Storage(StorageSettings(root=root))
    async with writing(known_run(storage, "r"), storage, False, print):
        print("holding", flush=True)
        await asyncio.sleep(60)

async def ends():
    state = await deployed.train(TrainOrder(run="r", recipe=RECIPE, root=root), return_state=True)
    print(json.dumps([state.type.value, state.name, state.message, len(tries)]))
"""
WORK = "deployed.TrainOrder.start = lambda self: None\ndeployed.training.train.fn = held\nasyncio.run(ends())"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    home = Home(tmp_path_factory.mktemp("home"))
    server = prefect_server.ensure(home)
    yield os.environ | prefect_server.environment(home, server.url)
    server.stop()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    run = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})
    storage.write_json(run.layout.identity, run.model_dump(mode="json"))
    return storage


def program(storage: Storage, work: str, environment: dict[str, str], recipe: str = "") -> subprocess.Popen[str]:
    code = BEFORE.replace("RECIPE", repr(recipe)) + work
    line = [sys.executable, "-c", code, storage.settings.root]
    return subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> list[object]:
    """Type, name and message of the flow run's last state, and how often it was tried."""
    printed, said = process.communicate(timeout=120)
    assert printed, said
    return list(json.loads(printed.splitlines()[-1]))


def test_a_run_that_another_process_trains_is_skipped(storage: Storage, environment: dict[str, str]) -> None:
    run = Run.model_validate(storage.read_json("runs/r/run.json"))
    epoch = take(storage, run.layout)
    storage.write_json(run.layout.lease, Lease(epoch=epoch, beat=time.time()).model_dump())
    kind, name, message, tries = ended(program(storage, WORK, environment))
    assert (kind, name, tries) == ("CANCELLED", "Skipped", 1)
    assert str(message).startswith("run 'r' is being worked on by process ")
    assert len(storage.list(run.layout.epochs)) == 1


def test_a_run_that_is_stopped_is_no_failure(storage: Storage, environment: dict[str, str]) -> None:
    process = program(storage, WORK, environment)
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    stop(storage, Run.model_validate(storage.read_json("runs/r/run.json")).layout, lambda said: None)
    assert ended(process) == ["CANCELLED", "Stopped", "run 'r' was stopped by `nbrl stop`", 1]


@pytest.mark.parametrize(("recipe", "words"), [("gone.yaml", "gone.yaml"), ("", "run.json is no configuration of this version")])
def test_a_recipe_that_is_gone_fails_at_once_in_a_sentence(
    storage: Storage, environment: dict[str, str], recipe: str, words: str
) -> None:
    process = program(storage, "asyncio.run(ends())", environment, recipe)
    printed, said = process.communicate(timeout=120)
    kind, _, message, _ = json.loads(printed.splitlines()[-1])
    assert kind == "FAILED"
    assert words in message
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("nbrl: ")]) == 1


UNSCHEDULED = """
import asyncio, json
from nbrl.flows import deployed
from nbrl.flows.deployments import deployment
from nbrl.flows.deployed import TrainOrder
from nbrl.flows.registration import register
from nbrl.flows.upkeep import kept_true, tidy
from pathlib import Path
from prefect import get_client

async def due():
    async with get_client() as client:
        return sorted(run.name for run in await client.read_flow_runs() if run.auto_scheduled)

async def registered(each, until):
    await register([each], "nbrl", Path.cwd())
    async with kept_true():
        for _ in range(120):
            found = await due()
            if until(found):
                break
            await tidy_all()
            await asyncio.sleep(0.5)
    return found

async def tidy_all():
    async with get_client() as client:
        for each in await client.read_deployments():
            await tidy(client, each)

def named(found):
    return found and all(name.startswith("hourly, due ") for name in found)

def hourly(cron):
    return deployment(deployed.train, "hourly", TrainOrder(run="hourly"), cron)

print(json.dumps([asyncio.run(registered(hourly(cron), named)) for cron in ("0 * * * *", "0 * * * *", "30 * * * *")]))
print(json.dumps(asyncio.run(registered(hourly(""), lambda found: not found))))
"""


def test_what_is_due_has_a_name_is_there_once_and_goes_with_its_schedule(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNSCHEDULED], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    (first, second, changed), none = map(json.loads, done.stdout.splitlines()[-2:])
    assert first == second
    assert {name[-3:] for name in first} == {":00"}
    assert {name[-3:] for name in changed} == {":30"}
    assert none == []
    for each in (first, changed):
        assert len(set(each)) == len(each)
