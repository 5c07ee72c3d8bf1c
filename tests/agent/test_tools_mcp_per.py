"""Each trajectory has an MCP server of its own, or a session with one, unless the settings share it."""

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.library import Library
from nbrl.agent.tools.mcp.servers import TrajectoryServers
from nbrl.agent.tools.mcp.transport import ANSWER_BYTES
from nbrl.agent.tools.settings import McpSettings
from tests.agent.mcp_talk import PATIENT_S, cell, over_http, settings, trajectory, with_library
from tests.processes import KEY, check_gone, mark, marked

pytestmark = pytest.mark.process

PAD = str(Path(__file__).with_name("mcp_pad.py"))
OWN = McpSettings(command=(sys.executable, PAD), environment=(KEY,), timeout_s=PATIENT_S)
SHARED = OWN.model_copy(update={"per": "runner"})


@pytest.fixture(autouse=True)
def started() -> Iterator[str]:
    """The mark of all programs that the test starts."""
    token = secrets.token_hex(8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, mark(token)[KEY])
        yield token


def wait_for_end(number: int, started: str) -> None:
    while number in marked(started):
        time.sleep(0.05)


async def two(library: Library) -> list[str]:
    """Two trajectories that take turns."""
    async with trajectory(library) as one, trajectory(library) as other:
        return [(await run(f"print(write({text!r}))")).strip() for run, text in [(one, "a"), (other, "b"), (one, "c")]]


def test_trajectories_do_not_see_each_other(started: str) -> None:
    assert with_library(settings(OWN), two) == ["['a']", "['b']", "['a', 'c']"]
    assert marked(started) == []


@pytest.mark.more
def test_trajectories_of_a_runner_share_a_server_where_the_settings_say_so() -> None:
    assert with_library(settings(SHARED), two) == ["['a']", "['a', 'b']", "['a', 'b', 'c']"]


@pytest.mark.parametrize(
    ("words", "per", "expected"),
    [
        ((), "trajectory", ["['a']", "['b']", "['a', 'c']"]),
        pytest.param(("stateless",), "trajectory", ["['a']", "['a', 'b']", "['a', 'b', 'c']"], marks=pytest.mark.more),
        pytest.param((), "runner", ["['a']", "['a', 'b']", "['a', 'b', 'c']"], marks=pytest.mark.more),
    ],
)
def test_an_endpoint_that_has_sessions_gives_each_trajectory_one(words: tuple[str, ...], per: str, expected: list[str]) -> None:
    with over_http(PAD, *words) as (url, _):
        server = McpSettings.model_validate({"url": url, "per": per, "timeout_s": PATIENT_S})
        assert with_library(settings(server), two) == expected


@pytest.mark.more
def test_a_server_ends_with_its_trajectory_and_serves_no_other(started: str) -> None:
    async def work(library: Library) -> tuple[str, str]:
        before = marked(started)
        async with trajectory(library) as run:
            first = await run("print(whose(), leave_behind())")
            async with trajectory(library) as idle:
                await idle("print('no call, no server')")
            assert marked(started)[: len(before)] == before
        number = int(first.split()[0])
        await asyncio.to_thread(wait_for_end, number, started)
        return first, await cell(library, "print(whose())")

    first, second = with_library(settings(OWN), work)
    assert first.split()[0] != second.split()[0]
    assert marked(started) == []  # nor what it started


@pytest.mark.more
def test_no_server_is_started_for_a_trajectory_that_calls_none(started: str) -> None:
    async def work(library: Library) -> None:
        before = marked(started)
        async with trajectory(library) as run:
            assert await run("print(1)") == "1\n"
            assert marked(started) == before

    with_library(settings(OWN), work)


@pytest.mark.more
def test_many_trajectories_at_once_have_a_server_each(started: str) -> None:
    async def work(library: Library) -> list[str]:
        async def one(number: int) -> str:
            return await cell(library, f"write('{number}'); print(whose(), write('end'))")

        return list(await asyncio.gather(*map(one, range(6))))

    said = with_library(settings(OWN), work)
    assert [line.split(None, 1)[1] for line in said] == [f"['{number}', 'end']\n" for number in range(6)]
    assert len({line.split()[0] for line in said}) == 6
    assert marked(started) == []


OWNER = """
import asyncio, sys
from nbrl.agent.tools.mcp.servers import TrajectoryServers
from nbrl.infra.process.child import kept
from tests.agent.mcp_talk import library_of, settings
from tests.agent.test_tools_mcp_per import OWN

async def main():
    library = library_of(settings(OWN), kept)
    await library.open()
    tools = {tool.name: tool for tool in library.tools("", "qa", servers=TrajectoryServers())}
    await tools["leave_behind"].call({})
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


@pytest.mark.more
def test_no_server_outlives_an_owner_that_is_killed(started: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE)
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(marked(started)) == 4  # itself, the keeper, the server, and what that started
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
    check_gone(started)


@pytest.mark.more
def test_a_server_that_dies_costs_its_trajectory_alone() -> None:
    async def work(library: Library) -> str:
        async with trajectory(library) as other:
            await other("write('mine')")
            toolbox = Toolbox(library.tools("", "qa", servers=TrajectoryServers()))
            for name in ("die", "whose"):  # another server would know nothing of what came before
                with pytest.raises(RuntimeError, match="the task ends here"):
                    await toolbox.call(name, {})
            assert isinstance(toolbox.fault, SessionError)
            return await other("print(write('still'))")

    assert with_library(settings(OWN), work) == "['mine', 'still']\n"


@pytest.mark.more
def test_a_server_that_hangs_or_says_too_much_is_an_error_in_the_cell() -> None:
    async def work(library: Library) -> str:
        code = f"try: flood({ANSWER_BYTES})\nexcept Exception as error: print(error)\nprint(write('on'))"
        long = await cell(library, code)
        return long + await cell(library, "try: hang()\nexcept Exception as error: print(error)")

    said = with_library(settings(OWN.model_copy(update={"timeout_s": 10.0})), work).splitlines()
    assert said[0].startswith("the MCP server lab did not answer: the answer is larger than")
    assert said[1:] == ["['on']", "the MCP server lab did not answer within 10 s"]


@pytest.mark.more
def test_a_server_that_cannot_be_started_again_is_an_infrastructure_fault(tmp_path: Path) -> None:
    program = tmp_path / "pad.py"
    program.write_text(Path(PAD).read_text())

    async def work(library: Library) -> None:
        await cell(library, "write('first')")
        program.unlink()
        tools = {tool.name: tool for tool in library.tools("", "qa", servers=TrajectoryServers())}
        with pytest.raises(SessionError, match="the MCP server lab cannot be reached"):
            await tools["write"].call({"text": "second"})

    with_library(settings(OWN.model_copy(update={"command": (sys.executable, str(program))})), work)


@pytest.mark.more
def test_an_endpoint_that_forgets_a_session_is_an_infrastructure_fault() -> None:
    with over_http(PAD) as (url, process):

        async def work(library: Library) -> None:
            tools = {tool.name: tool for tool in library.tools("", "qa", servers=TrajectoryServers())}
            assert await tools["write"].call({"text": "first"}) == ["first"]
            process.kill()
            process.wait()
            for _ in range(2):
                with pytest.raises(SessionError, match=r"^the (MCP server lab did not|session with the MCP server lab is lost)"):
                    await tools["write"].call({"text": "second"})

        with_library(settings(McpSettings(url=url, timeout_s=PATIENT_S)), work)
