"""What a page of another site asks for is refused, however it gets here, and what people and programs ask for is not."""

import asyncio
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from nbrl.infra.mlflow_app import CLOSED, without_assistant
from nbrl.infra.process.identity import names_of
from nbrl.infra.process.own_pages import LOCAL, Message, Receive, Send, for_own_pages

OWN = "http://127.0.0.1:4200"


async def _application(scope: Message, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        return await PlainTextResponse("let in")(scope, receive, send)
    socket = WebSocket(scope, receive, send)
    await socket.accept()
    await socket.close()


def test_mlflows_assistant_does_not_answer_and_its_pages_do_not_open_it() -> None:
    pages = TestClient(without_assistant(_application, b"<html><head></head></html>"), base_url=OWN)
    assert pages.post("/ajax-api/3.0/mlflow/assistant/message").status_code == 404
    assert pages.get("/ajax-api/2.0/mlflow/experiments/search").text == "let in"
    assert pages.get("/").text == f"<html><head>{CLOSED.decode()}</head></html>"
    assert pages.head("/").text == ""


CLIENT = TestClient(for_own_pages(_application), base_url=OWN)
FOLLOWED = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": OWN},
        {"Origin": OWN, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
        {"Host": "localhost:8080", "Origin": "http://localhost:8080"},
        {"Host": "LOCALHOST"},
        {"Host": "[::1]:8080"},
        {"Host": "127.0.0.1", "Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site", **FOLLOWED},
    ],
)
def test_people_programs_and_own_pages_are_let_in(headers: dict[str, str]) -> None:
    assert CLIENT.get("/", headers=headers).text == "let in"


@pytest.mark.attack(
    tried="A page of another site opens a websocket",
    wall="a guard before each server: Host, Origin and Sec-Fetch-Site",
    effect="closed",
)
def test_a_websocket_is_opened_to_own_pages_and_programs() -> None:
    for headers in ({}, {"Origin": OWN, "Sec-Fetch-Site": "same-origin"}):
        with CLIENT.websocket_connect(f"{OWN.replace('http', 'ws')}/", headers=headers):
            pass


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:4200", "Origin": "http://evil.example:4200"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost:80@evil.example"},
        {"Host": "127.0.0.1:4200, evil.example"},
        {"Host": ""},
        {"Host": "[::1"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:4201"},
        {"Origin": "http://localhost:4200"},
        {"Origin": "null"},
        {"Origin": "file://"},
        {"Origin": f"{OWN}.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "document"},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", **FOLLOWED},
    ],
)
@pytest.mark.attack(
    tried="A page of another site asks Prefect, MLflow or the trajectories, also by a name that it points at this machine",
    wall="a guard before each server: Host, Origin and Sec-Fetch-Site",
    effect="403",
)
def test_what_a_page_of_another_site_asks_for_is_refused(headers: dict[str, str]) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert CLIENT.request(method, "/", headers=headers).status_code == 403
    with pytest.raises(WebSocketDisconnect), CLIENT.websocket_connect(f"{OWN.replace('http', 'ws')}/", headers=headers):
        pass


def test_a_form_of_another_page_is_refused_though_a_person_sends_it() -> None:
    assert CLIENT.post("/", headers={"Sec-Fetch-Site": "cross-site", **FOLLOWED}).status_code == 403


def test_a_refusal_says_by_which_names_the_server_is_asked() -> None:
    assert "127.0.0.1, localhost, ::1" in CLIENT.get("/", headers={"Host": "machine"}).text
    assert TestClient(for_own_pages(_application, ("machine",)), base_url="http://machine").get("/").text == "let in"
    anywhere = TestClient(for_own_pages(_application, None), base_url="http://machine")
    assert anywhere.get("/").text == "let in"
    assert anywhere.get("/", headers={"Origin": "http://elsewhere"}).status_code == 403


def test_a_request_with_no_host_or_two_is_refused() -> None:
    async def status(hosts: list[bytes]) -> int:
        sent: list[Any] = []

        async def send(message: Message) -> None:
            sent.append(message)

        async def receive() -> Message:
            return {"type": "http.request"}

        scope = {"type": "http", "method": "GET", "path": "/", "headers": [(b"host", host) for host in hosts]}
        await for_own_pages(_application)(scope, receive, send)
        return int(sent[0]["status"])

    assert [asyncio.run(status(hosts)) for hosts in ([], [b"127.0.0.1", b"127.0.0.1"], [b"127.0.0.1"])] == [403, 403, 200]


def test_a_server_for_others_is_asked_by_names_of_its_machine_and_never_by_any_name() -> None:
    assert names_of("::1") == LOCAL
    assert names_of("Machine") == (*LOCAL, "machine")
    for host in ("0.0.0.0", "::"):
        names = names_of(host)
        assert {"127.0.0.1", "localhost"} < set(names)
        assert "*" not in names
        assert not [name for name in names if "%" in name or name != name.lower()]
