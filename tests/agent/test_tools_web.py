"""Search engines and other services of the web: what they are asked, what comes of their answers, and that keys stay here."""

import asyncio
import json
import logging
import re
from typing import Any

import pytest

from nbrl.agent.http.json_service import ANSWER_BYTES, Service, ServiceError
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.web import search
from nbrl.agent.tools.web.search import Exa, Firecrawl, Hit, Serper, web_search
from tests.agent.tool_server import Said, Server, serving

KEY = "sk-very-secret-key-0123456789"
SERPER = {
    "searchParameters": {"q": "tea", "type": "search", "num": 2},
    "organic": [
        {"title": "Tea", "link": "https://tea.org/", "snippet": "A drink\nof leaves.", "position": 1},
        {"title": "Green", "link": "https://tea.org/green", "position": 2},
        {"title": "Third", "link": "https://tea.org/3", "snippet": "x", "position": 3},
    ],
}
EXA = {
    "requestId": "1",
    "results": [
        {"title": "Tea", "url": "https://tea.org/", "id": "a", "text": "long", "highlights": ["A drink", "of leaves."]},
        {"title": None, "url": "https://tea.org/green", "id": "b", "text": "Green tea.", "publishedDate": None},
    ],
}
FIRECRAWL = {
    "success": True,
    "data": {"web": [{"title": "Tea", "url": "https://tea.org/", "description": "A drink of leaves.", "position": 1}]},
}
ENGINES: list[tuple[type[Serper | Exa | Firecrawl], str, Any]] = [
    (Serper, search.SERPER_KEY, SERPER),
    (Exa, search.EXA_KEY, EXA),
    (Firecrawl, search.FIRECRAWL_KEY, FIRECRAWL),
]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, variable, _ in ENGINES:
        monkeypatch.setenv(variable, KEY)


def find(engine: Serper | Exa | Firecrawl, query: str = "tea") -> list[Hit]:
    async def work() -> list[Hit]:
        try:
            return await engine(query)
        finally:
            await engine.service.close()

    return asyncio.run(work())


def test_serper_is_asked_and_read_by_its_documentation() -> None:
    with serving(Said(SERPER)) as server:
        hits = find(Serper(server.url, 2, 10.0))
    asked = server.asked[0]
    assert (asked.path, asked.body, asked.headers["x-api-key"]) == ("/search", {"q": "tea", "num": 2}, KEY)
    assert hits == [Hit("Tea", "https://tea.org/", "A drink\nof leaves."), Hit("Green", "https://tea.org/green", "")]


def test_exa_is_asked_and_read_by_its_documentation() -> None:
    with serving(Said(EXA)) as server:
        hits = find(Exa(server.url, 5, 10.0))
    asked = server.asked[0]
    assert (asked.path, asked.headers["x-api-key"], asked.body["query"], asked.body["numResults"]) == ("/search", KEY, "tea", 5)
    assert hits == [Hit("Tea", "https://tea.org/", "A drink … of leaves."), Hit("", "https://tea.org/green", "Green tea.")]


def test_firecrawl_is_asked_and_read_by_its_documentation() -> None:
    with serving(Said(FIRECRAWL)) as server:
        hits = find(Firecrawl(server.url, 5, 10.0))
    asked = server.asked[0]
    assert (asked.path, asked.body, asked.headers["authorization"]) == (
        "/v2/search",
        {"query": "tea", "limit": 5},
        f"Bearer {KEY}",
    )
    assert hits == [Hit("Tea", "https://tea.org/", "A drink of leaves.")]


def cell(server: Server, code: str, timeout_s: float = 10.0) -> tuple[str, str]:
    """What a cell that searches with Serper sees, and all that is recorded of it."""

    async def work() -> tuple[str, str]:
        engine = Serper(server.url, 2, timeout_s)
        tools = [web_search(engine)]
        toolbox = Toolbox(tools)
        result = await InlineKernel(prelude(tools), toolbox.call).execute(code, 20.0)
        await engine.service.close()
        return "".join(output.text for output in result.outputs), "".join(map(str, toolbox.take_calls()))

    return asyncio.run(work())


def test_hits_are_compact_text() -> None:
    with serving(Said(SERPER)) as server:
        said, _ = cell(server, "print(search('tea'))")
    assert said == "[1] Tea <https://tea.org/>\nA drink of leaves.\n\n[2] Green <https://tea.org/green>\n"


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind[1])
def test_a_missing_key_names_its_variable_and_asks_nobody(
    kind: tuple[type[Serper | Exa | Firecrawl], str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, variable, _ = kind
    monkeypatch.delenv(variable)
    with serving(Said({})) as server, pytest.raises(ServiceError, match=f"needs a key; set {variable} in the environment"):
        find(engine(server.url, 5, 10.0))
    assert server.asked == []


FAULTS: list[tuple[list[Said], str, int]] = [
    ([Said({"message": f"bad key {KEY}"}, 401)], r"refuses the key \(HTTP 401\); check SERPER_API_KEY", 1),
    ([Said(f"no {KEY}".encode(), 403)], "refuses the key", 1),
    ([Said({}, 429, {"Retry-After": "3600"})], r"takes no more calls now \(HTTP 429\) and asks to wait 3600 s", 1),
    ([Said({}, 429, {"Retry-After": "0"})], r"\(HTTP 429\), 3 times in a row", 3),
    ([Said({}, 500, {"Retry-After": "0"})], r"Serper failed \(HTTP 500\), 3 times", 3),
    ([Said({}, 400)], r"Serper failed \(HTTP 400\)", 1),
    ([Said(b"", 302, {"Location": "http://127.0.0.1:1/"})], "points elsewhere", 1),
    ([Said(b"<html>")], "not JSON", 1),
    ([Said(b"[" * 100_000)], "not JSON", 1),
    ([Said([1])], "without organic", 1),
    ([Said({"organic": "x"})], "without organic", 1),
    ([Said(b"x" * (ANSWER_BYTES + 1))], "larger than", 1),
    ([Said(b"x", headers={"Content-Encoding": "br"})], "packed as 'br'", 1),
    ([Said({}, delay_s=2.0)], "did not answer within 1 s", 1),
]


@pytest.mark.parametrize(("answers", "reason", "times"), FAULTS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_fault_is_an_error_in_the_cell_and_the_agent_goes_on(answers: list[Said], reason: str, times: int) -> None:
    code = "try: print(search('tea'))\nexcept Exception as error: print('told:', error)\nprint('on')"
    with serving(*answers) as server:
        said, recorded = cell(server, code, timeout_s=1.0 if "within" in reason else 10.0)
    assert server.asked
    assert len(server.asked) == times
    assert said.endswith("on\n")
    assert re.search(reason, said), said
    assert KEY not in said + recorded


def test_a_short_wait_is_taken() -> None:
    with serving(Said({}, 429, {"Retry-After": "0"}), Said({}, 503), Said(SERPER)) as server:
        assert len(find(Serper(server.url, 5, 10.0))) == 3


def test_nobody_there_is_an_error_without_the_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(Said({})) as server:
        url = server.url
    with pytest.raises(ServiceError, match=r"Serper cannot be reached \(ConnectError\), 3 times"):
        find(Serper(url, 5, 10.0))
    assert KEY not in caplog.text


@pytest.mark.parametrize("key", ["a\nb", "ключ"])
def test_a_key_that_cannot_be_a_header_is_not_quoted(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(search.SERPER_KEY, key)
    with pytest.raises(ServiceError, match="holds no usable key") as caught:
        find(Serper("http://127.0.0.1:1", 5, 10.0))
    assert key not in str(caught.value)


def test_a_key_that_comes_back_is_removed() -> None:
    with serving(Said({"organic": [{"title": KEY, "link": "x", "snippet": f"your key {KEY}"}]})) as server:
        assert find(Serper(server.url, 5, 10.0)) == [Hit("[key]", "x", "your key [key]")]
    escaped = json.dumps({"organic": [{"title": KEY}]}).replace("-", "\\u002d").encode()
    with serving(Said(escaped)) as server:
        assert find(Serper(server.url, 5, 10.0)) == [Hit("[key]", "", "")]


def test_keys_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving(Said(SERPER)) as server:
        find(Serper(server.url, 5, 10.0))
    assert caplog.records
    assert KEY not in caplog.text


def test_other_fields_than_text_are_nothing() -> None:
    for value in (None, 1, [], {}):
        with serving(Said({"organic": [{"title": value, "link": value, "snippet": value}, value]})) as server:
            assert find(Serper(server.url, 5, 10.0))[0] == Hit("", "", "")


def test_a_key_is_not_needed_where_it_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(search.SERPER_KEY)

    async def ask(url: str) -> Any:
        service = Service("It", url, variable=search.SERPER_KEY, timeout_s=5.0, optional=True)
        try:
            return await service.post("/", {})
        finally:
            await service.close()

    with serving(Said({"a": 1})) as server:
        assert asyncio.run(ask(server.url)) == {"a": 1}
    assert "authorization" not in server.asked[0].headers
