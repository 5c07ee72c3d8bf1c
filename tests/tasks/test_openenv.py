"""Environments behind servers of OpenEnv, by a server that says what tests need. The real ones are in test_openenv_real.py."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, TypeVar

import pytest
from pydantic import ValidationError

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.kinds.openenv import OpenEnvEnvironment
from nbrl.tasks.environments.openenv import connection as connections
from nbrl.tasks.environments.openenv import session as sessions_module
from nbrl.tasks.environments.openenv.actions import action_kinds, action_tools
from nbrl.tasks.environments.openenv.connection import OpenEnvConnection
from nbrl.tasks.environments.openenv.session import OpenEnvSession, OpenEnvSessions
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.outcome import judge
from tests.tasks.openenv_fake import SCHEMA, game, seen, serving

T = TypeVar("T")


def asked(seed: int) -> Asked:
    return Asked("", "", "openenv", "e", json.dumps({"seed": seed}))


def environment(url: str, **more: Any) -> OpenEnvEnvironment:
    return OpenEnvEnvironment(kind="openenv", url=url, full_reward=2.0, **more)


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def with_sessions(made: OpenEnvEnvironment, work: Callable[[OpenEnvSessions], Awaitable[T]]) -> T:
    async def body() -> T:
        sessions = await made.session_source().open()
        try:
            return await work(sessions)
        finally:
            await sessions.close()

    return asyncio.run(body())


async def act(session: OpenEnvSession, name: str, **arguments: Any) -> Any:
    return await next(tool for tool in session.tools if tool.name == name).call(arguments)


async def outcome(session: OpenEnvSession) -> Any:
    ended = Trajectory(id="", group="", sample=0, question="", ability="", status="done", answer=None, nodes=[], steps=[])
    return await session.outcome(ended)


def test_seeds_are_the_questions_and_the_server_says_the_task() -> None:
    with serving() as url:
        made = environment(url, train=2, held_out=1, seed=5)
        tables = made.load("environments.e")
    assert tables.train["id"].to_pylist() == ["seed-000005", "seed-000006"]
    assert tables.held_out["reference"].to_pylist() == ['{"seed": 100005}']
    assert tables.train["question"].to_pylist() == ["Find the number."] * 2


def test_actions_are_tools_and_the_reward_is_paid_by_steps_and_not_shown() -> None:
    async def work(sessions: OpenEnvSessions) -> Any:
        session = await sessions.start(asked(7), 0)
        words, opening = describe(session.tools), await session.observe()
        session.step = 1
        said = [await act(session, "guess", number=3), await act(session, "guess", number=9)]
        session.step = 3
        assert not session.done
        said.append(await act(session, "guess", number=7))
        assert session.done
        await session.close()
        return words, opening, said, await outcome(session)

    with serving() as url:
        words, opening, said, ended = with_sessions(environment(url), work)
    assert words.splitlines() == ["guess(number: int): Guesses the number.", "give_up(): Takes the action give_up."]
    assert opening == "guess"
    assert said == [
        {"hint": "higher", "done": False},
        {"hint": "lower", "done": False},
        {"hint": "right", "done": True},
    ]
    assert ended == {"success": True, "reward": 1.25, "steps": {"1": 0.25, "3": 1.0}, "metrics": {"reward": 2.5, "actions": 3}}
    judged = judge(json.dumps(ended), 4)
    assert (judged.fault, judged.exact, judged.value, judged.steps) == ("", 1.0, 1.0, (0.0, 0.25, 0.0, 1.0))


def test_reward_and_state_are_shown_where_the_settings_say_so() -> None:
    async def work(sessions: OpenEnvSessions) -> Any:
        session = await sessions.start(asked(4), 0)
        try:
            return await act(session, "guess", number=1), await act(session, "state")
        finally:
            await session.close()

    with serving() as url:
        said = with_sessions(environment(url, show_reward=True, show_state=True), work)
    assert said == ({"hint": "higher", "reward": 0.25, "done": False}, {"secret": 4})


def test_episodes_at_once_have_a_state_each() -> None:
    async def work(sessions: OpenEnvSessions) -> list[list[str]]:
        async def episode(seed: int) -> list[str]:
            session = await sessions.start(asked(seed), 0)
            try:
                return [(await act(session, "guess", number=number))["hint"] for number in range(seed + 1)]
            finally:
                await session.close()

        return await asyncio.gather(*map(episode, range(10)))

    with serving() as url:
        assert with_sessions(environment(url), work) == [["higher"] * seed + ["right"] for seed in range(10)]


def test_arguments_that_fit_no_action_are_refused_in_words() -> None:
    async def work(sessions: OpenEnvSessions) -> list[str]:
        session = await sessions.start(asked(4), 0)
        said = []
        for arguments in ({}, {"number": "x"}, {"number": 1, "reward": 5}, {"number": 1, "metadata": {}}):
            with pytest.raises(ValueError) as error:  # noqa: PT011 - its words are compared
                await act(session, "guess", **arguments)
            said.append(str(error.value))
        await session.close()
        return said

    with serving() as url:
        missing, wrong, forged, hosts = with_sessions(environment(url), work)
    assert missing == "'number' is a required property"
    assert wrong == "the argument number does not fit: 'x' is not of type 'integer'"
    assert "'reward' was unexpected" in forged
    assert "'metadata' was unexpected" in hosts


def replies(answer: Any) -> Callable[[], Callable[[dict[str, Any]], Any]]:
    """A game whose first guess is answered with this."""

    def new() -> Callable[[dict[str, Any]], Any]:
        play = game()
        return lambda message: answer if message["type"] == "step" else play(message)

    return new


def error(code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": "in /home/user/secret.py", "code": code, **more}}


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (json.dumps(seen("x", float("nan"), False)), "paid nan, which is no finite number"),
        (seen("x", "1e9", False), "paid '1e9', which is no finite number"),
        (seen("x", [1], False), "which is no finite number"),
        (seen("x", 1e5, False), "more than 1000 times full_reward"),
        (json.dumps(seen("x", 1.0, False)).replace("1.0", "1" + "0" * 400), "which is no finite number"),
        (seen("x", 1.0, "no"), "no observation of the protocol"),
        ({"type": "observation", "data": {"reward": 1.0}}, "no observation of the protocol"),
        ({"type": "observation"}, "no message of the protocol"),
        ([], "no message of the protocol"),
        ("no json", "did not answer: Expecting value"),
        ("[" * 100_000, "nested too deep"),
        (seen("x" * (8 << 20), 1.0, False), "did not answer"),
        (None, "did not answer"),
        (error("SESSION_ERROR"), "its server says"),
    ],
)
def test_what_no_server_may_say_is_an_infrastructure_fault(answer: Any, reason: str) -> None:
    async def work(sessions: OpenEnvSessions) -> None:
        session = await sessions.start(asked(4), 0)
        try:
            with pytest.raises(SessionError, match=reason):
                await act(session, "guess", number=1)
            assert (await outcome(session))["steps"] == {}
        finally:
            await session.close()

    with serving(replies(answer)) as url:
        with_sessions(environment(url), work)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error("EXECUTION_ERROR"), "the environment does not take this action"),
        (
            error("VALIDATION_ERROR", errors=[{"loc": ["number"], "msg": "too large"}, 5]),
            "the environment does not take this action: number: too large",
        ),
    ],
)
def test_an_action_that_the_environment_refuses_is_the_trajectorys_fault(answer: Any, said: str) -> None:
    async def work(sessions: OpenEnvSessions) -> None:
        session = await sessions.start(asked(4), 0)
        with pytest.raises(ValueError, match=f"^{said}$"):  # and no path of the server's host
            await act(session, "guess", number=1)
        await session.close()

    with serving(replies(answer)) as url:
        with_sessions(environment(url), work)


def test_a_server_that_hangs_is_an_infrastructure_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    held = threading.Event()

    def hangs() -> Callable[[dict[str, Any]], Any]:
        play = game()
        return lambda message: held.wait(60) and None if message["type"] == "step" else play(message)

    async def work(sessions: OpenEnvSessions) -> None:
        session = await sessions.start(asked(4), 0)
        monkeypatch.setattr(connections, "CALL_S", 0.3)
        with pytest.raises(SessionError, match=r"did not answer within 0\.3 s"):
            await act(session, "guess", number=1)
        held.set()
        await session.close()

    with serving(hangs) as url:
        with_sessions(environment(url), work)


def full_until(free: threading.Event) -> Callable[[], Callable[[dict[str, Any]], Any]]:
    def new() -> Callable[[dict[str, Any]], Any]:
        play = game()
        return lambda message: play(message) if free.is_set() else error("CAPACITY_REACHED")

    return new


def test_an_episode_waits_for_a_session_of_a_full_server(monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(sessions_module, "AGAIN_S", 0.02)

    async def work(sessions: OpenEnvSessions) -> bool:
        started = asyncio.create_task(sessions.start(asked(4), 0))
        await asyncio.sleep(0.2)
        waited = not started.done()
        free.set()
        await (await started).close()
        free.clear()
        monkeypatch.setattr(sessions_module, "FULL_S", 0.1)
        with pytest.raises(SessionError, match="as many sessions at once as a runner has episodes"):
            await sessions.start(asked(4), 0)
        return waited

    with serving(full_until(free)) as url:
        assert with_sessions(environment(url), work)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("x" * (8 << 20), "did not answer /schema: it is larger than"),
        ("[]", "/schema with what is no JSON object"),
        ({"action": {"oneOf": [{"title": f"A{n}Action"} for n in range(500)]}}, "names 201 kinds of actions"),
        ({"action": {"oneOf": []}}, "names 0 kinds of actions"),
    ],
)
def test_schemas_without_use_are_refused_before_any_work(schema: Any, reason: str) -> None:
    with serving(schema=schema) as url, pytest.raises(ConfigError, match=f"^environments.e: its server.*{reason}"):
        environment(url).load("environments.e")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "either a url or a command"),
        ({"url": "http://a", "command": ["x", "{port}"]}, "either a url or a command"),
        ({"command": ["serve"]}, "write {port} for the port"),
        ({"url": "ws://a"}, "give an address like"),
    ],
)
def test_settings_that_name_no_server_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        OpenEnvEnvironment.model_validate({"kind": "openenv", **settings})


def test_a_server_that_is_not_there_is_an_error_before_any_work() -> None:
    with pytest.raises(ConfigError, match=r"environments\.e: its server did not answer /schema"):
        environment("http://127.0.0.1:9").load("environments.e")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_server_cannot_send_its_client_elsewhere(status: int) -> None:
    reached = threading.Event()

    class Elsewhere(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            reached.set()

        def log_message(self, format: str, *args: object) -> None:
            pass

    def redirecting(to: str) -> type[BaseHTTPRequestHandler]:
        class Redirecting(Elsewhere):
            def do_GET(self) -> None:
                self.send_response(status)
                self.send_header("Location", to)
                self.send_header("Content-Length", "0")
                self.end_headers()

        return Redirecting

    with (
        listening(Elsewhere) as elsewhere,
        listening(redirecting(f"{elsewhere}/ws".replace("http", "ws"))) as url,
        pytest.raises(SessionError, match="its server cannot be reached"),
    ):
        asyncio.run(OpenEnvConnection.open(url))
    assert not reached.is_set()


def test_hostile_schemas_make_plain_tools() -> None:
    nested: dict[str, Any] = {"type": "string"}
    for _ in range(3_000):
        nested = {"items": nested}
    schema = {
        "$defs": {
            "Loop": {"title": "LoopAction", "properties": {"again": {"$ref": "#/$defs/Loop"}}},
            "Self": {"$ref": "#/$defs/Self"},
        },
        "anyOf": [
            {"title": "import os; Action", "properties": {"a b": {}, "class": {}, "a-b": {"type": "integer"}}},
            {"title": "printAction"},
            {"title": "searchAction"},
            {"$ref": "#/$defs/Loop"},
            {"$ref": "#/$defs/Self"},
            {"title": "LoopAction", "description": 5, "properties": [], "required": 3},
            {"title": "DeepAction", "properties": {"x": nested}},
            7,
        ],
    }
    tools = action_tools("openenv", action_kinds(schema, {"properties": 5}), ("search",), state=True)
    names = [tool.name for tool in tools]
    assert names == [
        "openenv_import_os", "openenv_print", "openenv_search", "loop", "step", "loop_2", "deep", "state",
    ]  # fmt: skip
    assert [parameter.name for parameter in tools[0].parameters] == ["a_b", "class_", "a_b_2"]


def test_tools_that_an_environment_lists_are_called_by_name() -> None:
    action = {"properties": {"type": {"const": "call_tool"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}}}
    listed = [{"name": "shout", "description": "Shouts.", "input_schema": {"properties": {"text": {"type": "string"}}}}]

    def new() -> Callable[[dict[str, Any]], Any]:
        def reply(message: dict[str, Any]) -> Any:
            data = message.get("data", {})
            observation: dict[str, Any] = {}
            if data.get("type") == "list_tools":
                observation = {"tools": listed}
            elif data.get("type") == "call_tool":
                text = data["arguments"]["text"]
                fault = {"error_type": "execution_error", "message": "it is loud already"} if text.isupper() else None
                observation = {"tool_name": data["tool_name"], "result": {"data": text.upper()}, "error": fault}
            return {"type": "observation", "data": {"observation": observation, "reward": 1.0, "done": False}}

        return reply

    async def work(sessions: OpenEnvSessions) -> Any:
        session = await sessions.start(asked(1), 0)
        said = await act(session, "shout", text="hey")
        with pytest.raises(ValueError, match="it is loud already"):
            await act(session, "shout", text="HEY")
        await session.close()
        return said, await outcome(session)

    with serving(new, {**SCHEMA, "action": action}) as url:
        said, ended = with_sessions(environment(url), work)
    assert said == {"result": "HEY", "done": False}
    assert ended["steps"] == {"0": 1.0}
