"""Pages of the web: from public addresses only, bounded, as Markdown."""

import asyncio
import gzip
import ipaddress
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.http.json_service import ServiceError
from nbrl.agent.tools.files.documents import DocumentError, Documents
from nbrl.agent.tools.web.pages import REDIRECTS, DirectReader, JinaReader, PageError, Read, read_page
from nbrl.agent.tools.web.public_network import PublicNetwork, is_public
from tests.agent.tool_server import Said, serving

PAGE = """<html><head><title>All about tea</title><script>steal()</script></head><body><nav><a href="/">Home</a></nav>
<article><h1>Tea</h1><p>Tea is made of the leaves of <a href="/camellia">Camellia sinensis</a>, a shrub of the hills of Asia.
Its leaves are picked by hand, and then withered, rolled, oxidised and dried in the course of a few days.</p>
<h2>Kinds</h2><ul><li>Green tea is steamed at once, so that it stays green.</li><li>Black tea is oxidised.</li></ul>
<table><tr><th>kind</th><th>minutes</th></tr><tr><td>green</td><td>2</td></tr></table></article></body></html>"""
GARBAGE = Said(b"%PDF-1.4 garbage", headers={"Content-Type": "application/pdf"})
HTML = {"Content-Type": "text/html; charset=utf-8"}


def read(url: str, reader: Read | None = None) -> str:
    chosen = reader or DirectReader(Documents(5_000, 20.0), 200_000, 20.0)

    async def work() -> str:
        try:
            answer: str = await read_page(chosen).call({"url": url})
            return answer
        finally:
            if isinstance(chosen, JinaReader):
                await chosen.service.close()

    return asyncio.run(work())


def here(max_bytes: int = 200_000, timeout_s: float = 20.0, max_chars: int = 5_000) -> DirectReader:
    """A reader that takes 127.0.0.1, and only that, for the internet."""
    network = PublicNetwork(allowed=lambda address: address == "127.0.0.1")
    return DirectReader(Documents(max_chars, 20.0), max_bytes, timeout_s, network)


@pytest.mark.process
def test_a_page_becomes_markdown() -> None:
    with serving(Said(PAGE.encode(), headers=HTML)) as server:
        text = read(f"{server.url}/tea?a=b", here())
    assert server.asked[0].path == "/tea?a=b"
    assert not {"cookie", "authorization"} & set(server.asked[0].headers)
    assert "All about tea" in text
    assert "## Kinds" in text
    assert "- Green tea is steamed at once" in text
    assert "[Camellia sinensis]" in text
    assert "| green | 2 |" in text
    assert "steal" not in text


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        (b'{"a": 1}', {"Content-Type": "application/json"}, '{"a": 1}'),
        ("tee für zwei".encode("latin-1"), {"Content-Type": 'text/plain; charset="latin-1"'}, "tee für zwei"),
        (b"plain", {"Content-Type": "text/plain; charset=no-such"}, "plain"),
        (b"\\ud800", {"Content-Type": "text/plain; charset=unicode_escape"}, "\\ud800"),
        (b"+2AA-", {"Content-Type": "text/plain; charset=UTF7"}, "+2AA-"),
        (b"a-" + b"9" * 50_000, {"Content-Type": "text/plain; charset=punycode"}, "a-999"),
        (gzip.compress(b"packed" * 20_000), {"Content-Type": "text/plain", "Content-Encoding": "gzip"}, "packed" * 800),
        (zlib.compress(b"packed"), {"Content-Type": "text/plain", "Content-Encoding": "deflate"}, "packed"),
    ],
)
def test_text_is_taken_as_it_is(body: bytes, headers: dict[str, str], expected: str) -> None:
    with serving(Said(body, headers=headers)) as server:
        assert read(server.url, here()).startswith(expected)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (Said(b"\x89PNG", headers={"Content-Type": "image/png"}), "the page is 'image/png'; only HTML, PDF and text"),
        (Said(b"x" * 200_001, headers=HTML), "larger than 200000 bytes"),
        (Said(gzip.compress(b"x" * 10**7), headers={**HTML, "Content-Encoding": "gzip"}), "larger than 200000 bytes"),
        (Said(b"no gzip", headers={**HTML, "Content-Encoding": "gzip"}), "badly packed"),
        (Said(b"x", headers={**HTML, "Content-Encoding": "br"}), "packed as 'br'"),
        (Said(b"", 404), "answers HTTP 404"),
        (Said(b"", 302, {"Location": "/again"}), f"redirects more than {REDIRECTS} times"),
        (Said(b"", 302, {"Location": "file:///etc/passwd"}), "not of the form"),
        (Said(b"", 302, {"Location": "http://[::1"}), "not of the form"),
        pytest.param(GARBAGE, "no pdf that can be read", marks=pytest.mark.process),
        (Said(b"x", headers=HTML, delay_s=3.0), "did not come within 1 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_says_why(said: Said, reason: str) -> None:
    with serving(said) as server, pytest.raises((PageError, DocumentError), match=reason):
        read(server.url, here(timeout_s=1.0 if "within" in reason else 20.0))


def test_a_long_page_is_cut_and_says_so() -> None:
    with serving(Said(b"y" * 3_000, headers={"Content-Type": "text/plain"})) as server:
        assert read(server.url, here(max_chars=1_000)) == "y" * 1_000 + "\n[cut here: 1000 characters]"


@pytest.mark.process
def test_redirects_are_followed_within_what_is_allowed() -> None:
    def route(path: str) -> Said:
        return Said(PAGE.encode(), headers=HTML) if path == "/tea" else Said(b"", 301, {"Location": "../tea"})

    with serving(route=route) as server:
        assert "Green tea" in read(f"{server.url}/a/b", here())


ADDRESSES = ["127.0.0.1", "localhost", "[::1]", "0.0.0.0", "2130706433", "0x7f.1", "127.1", "[::ffff:127.0.0.1]", "[::]"]


@pytest.mark.parametrize("host", ADDRESSES)
def test_no_spelling_of_this_machine_is_reached(host: str) -> None:
    with serving(Said(b"secret", headers=HTML), host="0.0.0.0") as server, pytest.raises(PageError) as caught:
        read(f"http://{host}:{server.url.rpartition(':')[2]}/")
    assert server.asked == []
    assert "not on the public internet" in str(caught.value) or "there is no host" in str(caught.value)


def test_a_redirect_to_another_address_of_this_machine_is_not_followed() -> None:
    with serving(Said(b"secret", headers=HTML), host="127.0.0.2") as inner:
        with (
            serving(Said(b"", 302, {"Location": inner.url})) as server,
            pytest.raises(PageError, match=r"127\.0\.0\.2 is not on the public internet"),
        ):
            read(server.url, here())
        assert inner.asked == []


def test_a_name_that_changes_its_address_gains_nothing() -> None:
    """The address that was checked is the one that is connected to: the name is resolved once a connection."""
    answers = [["127.0.0.1"], ["127.0.0.2"], ["127.0.0.1", "127.0.0.2"]]
    resolved: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        resolved.append(host)
        return answers[len(resolved) - 1]

    network = PublicNetwork(allowed=lambda address: address == "127.0.0.1", resolve=resolve)
    reader = DirectReader(Documents(1_000, 20.0), 1_000, 20.0, network)
    with serving(Said(b"open", headers={"Content-Type": "text/plain"})) as server:
        url = f"http://changing.example:{server.url.rpartition(':')[2]}/"
        assert read(url, reader) == "open"
        assert resolved == ["changing.example"]
        for _ in range(2):
            with pytest.raises(PageError, match=r"changing\.example is not on the public internet"):
                read(url, reader)
        assert len(server.asked) == 1
        assert server.asked[0].headers["host"].startswith("changing.example:")


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "224.0.0.1"),
        *("240.0.0.1", "255.255.255.255", "192.0.2.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fd00:ec2::254", "ff02::1"),
        *("::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::"),
        *("2001:db8::1", "::127.0.0.1", "192.0.0.192", "168.63.129.16", "fec0::1", "3fff::1", "::ffff:192.0.0.192"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_in_every_guise(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    mapped, nat64 = ipaddress.IPv6Address(0xFFFF00000000 + number), ipaddress.IPv6Address((0x64FF9B << 96) + number)
    assert is_public(str(mapped)) == is_public(str(nat64)) == is_public(str(address))
    assert not (is_public(str(address)) and (address.is_private or address.is_loopback or address.is_link_local))


@pytest.mark.parametrize(
    "url",
    ["", "tea", "file:///etc/passwd", "ftp://a.org/", "gopher://a.org", "http://", "http://user:word@a.org/", "http://a b/",
     "http://a.org:99999/", "javascript:alert(1)", "http://a.org/" + "x" * 3_000, "\x00"],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(PageError, match=r"not of the form|holds a password"):
        read(url)


@given(st.text(max_size=40))
def test_no_text_is_an_address_that_brings_up_more_than_a_page_error(text: str) -> None:
    async def nobody(host: str, port: int) -> list[str]:
        return []

    reader = DirectReader(Documents(1_000, 20.0), 1_000, 20.0, PublicNetwork(resolve=nobody))
    with pytest.raises(PageError):
        read(f"http://{text}", reader)


def test_jina_is_asked_and_read_by_its_documentation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JINA_API_KEY", "jina-key")
    page = {"title": "Tea", "url": "https://tea.org/", "content": "Leaves.", "usage": {"tokens": 5}}
    with serving(Said({"code": 200, "status": 20000, "data": page}), Said({"data": None})) as server:
        assert read("https://tea.org/", JinaReader(server.url, 100, 10.0)) == "# Tea\n\nLeaves."
        asked = server.asked[0]
        assert (asked.body, asked.headers["accept"]) == ({"url": "https://tea.org/"}, "application/json")
        assert asked.headers["authorization"] == "Bearer jina-key"
        with pytest.raises(ServiceError, match="without a page"):
            read("https://tea.org/", JinaReader(server.url, 100, 10.0))
