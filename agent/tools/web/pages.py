"""Web pages as Markdown, fetched by this host from public addresses only, or by Jina's reader."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from nbrl.agent.http.client import BodyTooLargeError, EncodingError, body
from nbrl.agent.http.json_service import Service, ServiceError
from nbrl.agent.text import cut_end
from nbrl.agent.tools.files.charsets import UNNAMED
from nbrl.agent.tools.files.documents import Documents
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.tools.web.public_network import ForbiddenAddressError, PublicNetwork

URL_CHARS = 2_000
REDIRECTS = 5
_KINDS = {"text/html": "html", "application/xhtml+xml": "html", "application/pdf": "pdf"}
_TEXTS = ("application/json", "application/xml", "application/yaml")
_HEADERS = {"User-Agent": "nbrl", "Accept": "text/html, application/pdf, text/*;q=0.9", "Accept-Encoding": "gzip, deflate"}


class PageError(Exception):
    """A page cannot be read; the message is for the cell."""


Read = Callable[[str], Awaitable[str]]


def read_page(read: Read) -> FunctionTool:
    """Return the tool `read_page(url)` by one of the readers below."""

    async def read_page(url: str) -> str:
        """Reads a web page or a PDF on the web and returns it as Markdown.

        Args:
            url: an http or https address
        """
        return await read(str(_address(url)))

    return FunctionTool(read_page)


def _address(url: str, base: str = "") -> httpx.URL:
    """Return the checked address `url`, seen from the page `base`."""
    try:
        address = httpx.URL(base).join(url) if len(url) <= URL_CHARS else httpx.URL()
    except (httpx.InvalidURL, UnicodeError, ValueError):
        address = httpx.URL()
    port = 80 if address.port is None else address.port
    if address.scheme not in ("http", "https") or not address.host or "%" in address.host or not 0 < port < 65536:
        raise PageError("the address is not of the form https://host/path")
    if address.userinfo:
        raise PageError("the address holds a password; pages are read without")
    return address


@dataclass(frozen=True)
class _Answer:
    """The result of one request: a body of `kind`, or the target of a redirect."""

    elsewhere: str = ""
    kind: str = ""
    charset: str = ""
    data: bytes = b""


class DirectReader:
    """Fetches pages itself. Every connection, after redirects too, goes through `network`; no proxy, no cookies, no keys."""

    def __init__(self, documents: Documents, max_bytes: int, timeout_s: float, network: PublicNetwork | None = None) -> None:
        self._documents, self._max_bytes, self._timeout_s = documents, max_bytes, timeout_s
        self._network = network or PublicNetwork()

    async def __call__(self, url: str) -> str:
        """Return the page. Raises PageError or DocumentError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._follow(url)
        except TimeoutError:
            raise PageError(f"the page did not come within {self._timeout_s:g} s") from None
        except ForbiddenAddressError as error:
            raise PageError(str(error)) from None
        except (BodyTooLargeError, EncodingError) as error:
            raise PageError(f"the page cannot be read: {error}") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            raise PageError(f"the page cannot be fetched: {str(error)[:200] or type(error).__name__}") from None
        return await self._documents.to_text(answer.kind, answer.data, answer.charset)

    async def _follow(self, url: str) -> _Answer:
        async with httpcore.AsyncConnectionPool(network_backend=self._network) as pool:
            for _ in range(REDIRECTS + 1):
                answer = await self._get(pool, _address(url))
                if not answer.elsewhere:
                    return answer
                url = str(_address(answer.elsewhere, url))
        raise PageError(f"the page redirects more than {REDIRECTS} times")

    async def _get(self, pool: httpcore.AsyncConnectionPool, address: httpx.URL) -> _Answer:
        target = httpcore.URL(
            scheme=address.raw_scheme, host=address.raw_host, port=address.port, target=address.raw_path or b"/"
        )
        headers = [("Host", address.netloc.decode("ascii")), *_HEADERS.items()]
        async with pool.stream("GET", target, headers=headers) as response:
            received = httpx.Headers(response.headers)
            if response.status in (301, 302, 303, 307, 308) and "Location" in received:
                return _Answer(elsewhere=received["Location"])
            if response.status != 200:
                raise PageError(f"the page answers HTTP {response.status}")
            kind, charset = _kind(received.get("Content-Type", "text/html"))
            data = await body(response.aiter_stream(), received.get("Content-Encoding", ""), self._max_bytes)
        return _Answer(kind=kind, charset=charset, data=data)


def _kind(content_type: str) -> tuple[str, str]:
    """Return the kind of document and its charset, from the header."""
    name, _, rest = content_type.partition(";")
    name = name.strip().lower()
    charset = next((part.partition("=")[2].strip(" \"'") for part in rest.split(";") if "charset=" in part.lower()), UNNAMED)
    if kind := _KINDS.get(name):
        return kind, charset
    if name.startswith("text/") or name in _TEXTS or name.endswith(("+json", "+xml")):
        return "txt", charset
    raise PageError(f"the page is {name[:60]!r}; only HTML, PDF and text can be read")


class JinaReader:
    """Asks Jina's reader, which fetches the page on its side: POST / {url}."""

    def __init__(self, base_url: str, max_chars: int, timeout_s: float) -> None:
        self.service = Service("Jina's reader", base_url, variable="JINA_API_KEY", timeout_s=timeout_s, optional=True)
        self._max_chars = max_chars

    async def __call__(self, url: str) -> str:
        reply: Any = await self.service.post("/", {"url": url})
        match reply:
            case {"data": {"content": str(content)} as page}:
                title = page.get("title")
                head = f"# {title}\n\n" if isinstance(title, str) and title and title not in content[:500] else ""
                return cut_end(head + content, self._max_chars)
        raise ServiceError("Jina's reader answered JSON without a page")
