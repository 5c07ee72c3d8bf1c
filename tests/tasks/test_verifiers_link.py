"""The host's side of the program of verifiers, against programs that answer otherwise."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.errors import InfraError
from nbrl.infra.process import spoken
from nbrl.tasks.environments.kinds.verifiers import VerifiersEnvironment
from nbrl.tasks.environments.verifiers import link as links
from nbrl.tasks.environments.verifiers.link import ProgramLink, ProgramOpening
from nbrl.tasks.errors import ConfigError

pytestmark = pytest.mark.process

# Answers `open`, and to everything else what `reply(request)` returns; None is no answer.
PROGRAM = """
import json, os, sys, time
out = int(sys.argv[2])
{reply}
with os.fdopen(int(sys.argv[1]), "rb") as lines:
    for line in lines:
        request = json.loads(line)
        said = {{"id": request["id"], "ok": None}} if request["do"] == "open" else reply(request)
        if said is not None:
            os.write(out, said if isinstance(said, bytes) else json.dumps(said).encode() + b"\\n")
"""
ANSWERS = "def reply(r): return {'id': r['id'], 'ok': r['do']}"
REFUSES = "def reply(r): return {'id': r['id'], 'refused': 'no ' + r['do']}"
FAILS = "def reply(r): return {'id': r['id'], 'failed': 'OSError: /secret'}"
SILENT = "def reply(r): return {'id': r['id'], 'ok': 1} if r['do'] == 'ping' else None"
HANGS = "def reply(r): time.sleep(1000)"
DIES = "def reply(r): print('out of memory', flush=True); os._exit(3)"
ENDLESS = "def reply(r):\n    while True: os.write(out, b'[' * 65536)"
NO_SUCH = "dumps = json.dumps\njson.dumps = lambda said: dumps({'id': said['id'], 'refused': 'no such'})"
OTHERS = "def reply(r): return {'id': r['id'] if r['do'] == 'ping' else 999, 'ok': 5}"


@pytest.fixture
def linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Callable[[ProgramLink], Coroutine[Any, Any, Any]]], Any]:

    def run(reply: str, work: Callable[[ProgramLink], Coroutine[Any, Any, Any]]) -> Any:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM.format(reply=reply))
        monkeypatch.setattr(links, "PROGRAM", program)

        async def talk() -> Any:
            link = await ProgramLink.open(ProgramOpening(sys.executable, "tasks", {"train": {}, "held_out": {}}))
            try:
                return await work(link)
            finally:
                await link.close()

        return asyncio.run(talk())

    return run


def test_many_requests_are_answered_each_with_its_own(linked: Any) -> None:
    async def work(link: ProgramLink) -> list[Any]:
        return await asyncio.gather(*(link.ask(f"do{number}", 30) for number in range(300)))

    assert linked(ANSWERS, work) == [f"do{number}" for number in range(300)]


def test_a_refusal_is_the_doing_of_what_asks_and_a_failure_is_not(linked: Any) -> None:
    async def refused(link: ProgramLink) -> None:
        with pytest.raises(ValueError, match="no call"):
            await link.ask("call", 30)

    async def failed(link: ProgramLink) -> None:
        with pytest.raises(InfraError, match="OSError"):
            await link.ask("call", 30)
        assert link.fault == ""

    linked(REFUSES, refused)
    linked(FAILS, failed)


def test_an_answer_that_does_not_come_fails_alone_while_the_program_lives(linked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "ABANDONED", 3)

    async def work(link: ProgramLink) -> None:
        for _ in range(2):
            with pytest.raises(InfraError, match=r"did not answer call within 0\.1 s"):
                await link.ask("call", 0.1)
            assert link.fault == ""
        with pytest.raises(InfraError):  # too many: the program is stuck
            await link.ask("call", 0.1)
        with pytest.raises(InfraError, match="did not answer within"):
            await link.ask("ping", 1)

    linked(SILENT, work)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (HANGS, "did not answer"),
        (DIES, "the program has ended; it wrote: out of memory"),
        (ENDLESS, "a line of more than 500000 bytes"),
        ("def reply(r): return b'Traceback\\n'", "it wrote what is no answer"),
        ("def reply(r): return {'id': 'x', 'ok': 1}", "it wrote what is no answer"),
        ("def reply(r): return [1]", "it wrote what is no answer"),
        ("def reply(r): return b'[' * 20000 + b'\\n'", "it wrote what is no answer"),
    ],
)
def test_a_program_that_dies_hangs_or_writes_no_answer_fails_all_that_is_under_way(
    linked: Any, monkeypatch: pytest.MonkeyPatch, reply: str, words: str
) -> None:
    monkeypatch.setattr(links, "PING_S", 0.5)
    monkeypatch.setattr(spoken, "LINE_BYTES", 500_000)
    limit = 1.0 if reply == HANGS else 30.0

    async def work(link: ProgramLink) -> list[Any]:
        asked = (link.ask("call", limit) for _ in range(20))
        return [*await asyncio.gather(*asked, return_exceptions=True), link.fault]

    *faults, last = linked(reply, work)
    assert all(type(fault) is InfraError for fault in faults)
    assert words in last


def test_an_answer_to_nothing_is_left_alone(linked: Any) -> None:
    async def work(link: ProgramLink) -> None:
        with pytest.raises(InfraError, match="did not answer call"):
            await link.ask("call", 0.2)

    linked(OTHERS, work)


def test_a_program_that_refuses_the_taskset_is_ended(linked: Any) -> None:
    async def nothing(link: ProgramLink) -> None:
        raise AssertionError

    with pytest.raises(ValueError, match="no such"):
        linked(NO_SUCH, nothing)


def test_an_environment_that_was_not_made_is_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"environments\.e\.environment: there is no Python in .*gone; run make setup-verifiers"
    ):
        VerifiersEnvironment(kind="verifiers", taskset="any", environment=str(tmp_path / "gone")).load("environments.e")
