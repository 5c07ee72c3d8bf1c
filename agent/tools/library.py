"""The tools that the settings name, opened once for all trajectories of a host."""

import asyncio
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nbrl.agent.errors import ToolError
from nbrl.agent.http.json_service import ChatModel, Service
from nbrl.agent.tools.base import Tool
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.tools.files import files
from nbrl.agent.tools.files.documents import UNCONFINED, Documents
from nbrl.agent.tools.files.files import ReadFile
from nbrl.agent.tools.functions import FunctionTool
from nbrl.agent.tools.mcp.servers import McpServer, TrajectoryServers
from nbrl.agent.tools.mcp.transport import Keep
from nbrl.agent.tools.names import check_tool_name
from nbrl.agent.tools.settings import BUILT_IN, CorpusSearch, ModelSettings, SimulatedSearch, ToolSettings, WebSearch
from nbrl.agent.tools.simulated import SimulatedQuestion, simulated_search
from nbrl.agent.tools.web import search
from nbrl.agent.tools.web.pages import DirectReader, JinaReader, read_page
from nbrl.agent.tools.web.search import Exa, Firecrawl, Serper, web_search

_ENGINES: dict[str, tuple[Callable[[str, int, float], Serper | Exa | Firecrawl], str]] = {
    "serper": (Serper, search.SERPER_URL),
    "exa": (Exa, search.EXA_URL),
    "firecrawl": (Firecrawl, search.FIRECRAWL_URL),
}


async def no_files(path: str) -> bytes:
    """Raise ToolError: there is no workspace."""
    raise ToolError(f"{path[:200]!r} cannot be read: there is no workspace here")


@dataclass(frozen=True)
class Equipment:
    """The corpus of an environment, which search looks in, and its tools; None means the default ones."""

    corpus: Corpus = field(default_factory=lambda: Corpus.in_memory([]))
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True)
class ToolContext:
    """The context of one trajectory's tools: its environment, its workspace, the question for a simulated search, its servers.

    Without `servers` the tools of MCP servers are described only.
    """

    environment: str
    read_file: ReadFile = no_files
    asked: SimulatedQuestion | None = None
    servers: TrajectoryServers | None = None


ToolMaker = Callable[[ToolContext], Tool | None]
"""Makes a trajectory's tool; None where its environment has none."""


class Library:
    """`open` before use, `close` after; `tools` are those of an ability in an environment, for one trajectory.

    Which tools there are never changes in between. `parser` is the command line of convert.py; `keep` ends the programs of MCP
    servers if this process is killed. Raises ToolError when a tool that is named cannot be set up.
    """

    def __init__(
        self,
        settings: ToolSettings,
        environments: Mapping[str, Equipment],
        parser: Sequence[str] = UNCONFINED,
        keep: Keep | None = None,
    ) -> None:
        self._settings, self._environments, self._parser, self._keep = settings, environments, parser, keep
        self._makers: dict[str, ToolMaker] = {}
        self._shared: dict[str, list[Tool]] = {}
        self._services: list[Service] = []
        self._servers: dict[str, McpServer] = {}

    async def open(self) -> None:
        """Set up every tool that an ability has."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the sessions and connections."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        for service in self._services:
            await service.close()
        self._services = []

    @property
    def every(self) -> list[tuple[str, str]]:
        """Return every environment with each ability that the settings name, and with the empty name for any other ability."""
        return [(environment, ability) for environment in self._environments for ability in ("", *self._settings.abilities)]

    def names(self, environment: str, ability: str) -> tuple[str, ...]:
        """Return the tools and MCP servers of an ability in an environment: the nearest settings that say which."""
        equipment, settings = self._environments[environment], self._settings
        if ability in settings.abilities:
            return settings.abilities[ability]
        named = settings.default if equipment.tools is None else equipment.tools
        return named if named is not None else (("search",) if equipment.corpus else ())

    def tools(
        self,
        environment: str,
        ability: str,
        read_file: ReadFile = no_files,
        asked: SimulatedQuestion | None = None,
        servers: TrajectoryServers | None = None,
    ) -> list[Tool]:
        """Return the tools of an ability in an environment, for one trajectory.

        Those over files read by `read_file`, a simulated search is about what is `asked`, and MCP servers are those of `servers`;
        without them their tools are described and cannot be called.
        """
        return self._resolve(self.names(environment, ability), ToolContext(environment, read_file, asked, servers))

    def common(self) -> list[Tool]:
        """Return the tools that every ability has in every environment, as kernels know them: by their names and parameters."""
        lists = [self.names(*each) for each in self.every]
        environment, names = next(iter(self._environments)), tuple(n for n in lists[0] if all(n in names for names in lists))
        return self._resolve(names, ToolContext(environment))

    def _resolve(self, names: tuple[str, ...], context: ToolContext) -> list[Tool]:
        tools: list[Tool] = []
        for name in dict.fromkeys(names):
            if name in self._makers:
                made = self._makers[name](context)
                tools += [] if made is None else [made]
            elif name in self._servers:
                server, servers = self._servers[name], context.servers
                tools += server.described() if servers is None else servers.tools(server)
            else:
                tools += self._shared[name]
        return tools

    async def _open(self) -> None:
        named = {name for each in self.every for name in self.names(*each)}
        self._makers = {name: open_tool(self) for name, open_tool in OPENERS.items() if name in named}
        for name, place in self._settings.own.items():
            self._shared[name] = [own_tool(name, place)]
        taken = {*BUILT_IN, *self._settings.own}
        for name, settings in self._settings.mcp.items():
            self._servers[name] = server = McpServer(name, settings, self._keep)
            await server.open(taken)
            taken |= {*server.names}

    def open_search(self) -> ToolMaker:
        match self._settings.search:
            case CorpusSearch(top_k=top_k):
                searches = {
                    name: SearchTool(each.corpus, top_k) for name, each in self._environments.items() if self._searches(name)
                }
                return lambda context: searches.get(context.environment)
            case WebSearch(engine=engine, top_k=top_k, base_url=base_url, timeout_s=timeout_s):
                kind, url = _ENGINES[engine]
                searcher = kind(base_url or url, top_k, timeout_s)
                self._services.append(searcher.service)
                tool = web_search(searcher)
                return lambda context: tool
            case SimulatedSearch() as settings:
                model = self._chat_model(settings.model)
                return lambda context: simulated_search(model, settings, context.asked)

    def _searches(self, environment: str) -> bool:
        """Return whether an ability of the environment searches its corpus."""
        named = any("search" in self.names(*each) for each in self.every if each[0] == environment)
        return named and (self._environments[environment].corpus.has_words or len(self._environments) == 1)

    def open_page_reader(self) -> ToolMaker:
        settings = self._settings.read_page
        if settings.reader == "jina":
            jina = JinaReader(settings.base_url, settings.max_chars, settings.timeout_s)
            self._services.append(jina.service)
            tool = read_page(jina)
        else:
            documents = Documents(settings.max_chars, settings.timeout_s, self._parser)
            tool = read_page(DirectReader(documents, settings.max_bytes, settings.timeout_s))
        return lambda context: tool

    def open_picture_questions(self) -> ToolMaker:
        if self._settings.model is None:
            raise ToolError("visual_qa asks a model: set model.base_url and model.name")
        model = self._chat_model(self._settings.model)
        return lambda context: files.visual_qa(context.read_file, model)

    def open_file_reader(self) -> ToolMaker:
        settings = self._settings.inspect_file
        documents = Documents(settings.max_chars, settings.timeout_s, self._parser)
        if self._settings.model is None:
            return lambda context: files.file_text(context.read_file, documents)
        model = self._chat_model(self._settings.model)
        return lambda context: files.inspect_file(context.read_file, documents, model)

    def _chat_model(self, settings: ModelSettings) -> ChatModel:
        model = ChatModel(settings.base_url, settings.name, settings.key, settings.max_tokens, settings.timeout_s)
        self._services.append(model.service)
        return model


OPENERS: dict[str, Callable[[Library], ToolMaker]] = {
    "search": Library.open_search,
    "read_page": Library.open_page_reader,
    "visual_qa": Library.open_picture_questions,
    "inspect_file": Library.open_file_reader,
}
"""How each tool of BUILT_IN is opened for all trajectories."""


def own_tool(name: str, place: str) -> FunctionTool:
    """Return the function at `package.module:function` as the tool `name`. Raises ToolError if there is no typed one."""
    check_tool_name(name)
    module, _, attribute = place.partition(":")
    try:
        target: Any = vars(importlib.import_module(module))[attribute]
    except (ImportError, KeyError, ValueError) as error:
        raise ToolError(f"the tool {name} is not at {place!r} (package.module:function): {error}") from error
    if isinstance(target, FunctionTool):
        return target.named(name)
    if not inspect.isfunction(target):
        raise ToolError(f"the tool {name}: {place!r} is no function")
    return FunctionTool(target, name)
