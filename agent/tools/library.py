"""The tools that the settings name, opened once for all trajectories of a host."""

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
from nbrl.agent.tools.mcp.session import McpSession
from nbrl.agent.tools.mcp.tools import mcp_tools
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
    """Used if there is no workspace."""
    raise ToolError(f"{path[:200]!r} cannot be read: there is no workspace here")


@dataclass(frozen=True)
class Equipment:
    """What an environment brings along: what the search of the corpus looks in, and its tools; None are the default ones."""

    corpus: Corpus = field(default_factory=lambda: Corpus.in_memory([]))
    tools: tuple[str, ...] | None = None


class Library:
    """`open` before use, `close` after; `tools` are those of an ability in an environment, for one trajectory.

    Which tools there are never changes in between. `parser` is the command line of convert.py. Raises ToolError when
    one that is named cannot be set up.
    """

    def __init__(self, settings: ToolSettings, environments: Mapping[str, Equipment], parser: Sequence[str] = UNCONFINED) -> None:
        self._settings, self._environments, self._parser = settings, environments, parser
        self._searches: dict[str, Tool] = {}
        self._shared: dict[str, list[Tool]] = {}
        self._services: list[Service] = []
        self._sessions: list[McpSession] = []
        self._documents = Documents(settings.inspect_file.max_chars, settings.inspect_file.timeout_s, parser)
        self._model = self._chat_model(settings.model)
        self._simulator = self._chat_model(settings.search.model) if isinstance(settings.search, SimulatedSearch) else None

    async def open(self) -> None:
        """Set up every tool that an ability has."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the sessions and connections."""
        for session in self._sessions:
            await session.close()
        for service in self._services:
            await service.close()
        self._sessions, self._services = [], []

    @property
    def every(self) -> list[tuple[str, str]]:
        """Every environment with each ability that the settings name, and with the empty name for any other ability."""
        return [(environment, ability) for environment in self._environments for ability in ("", *self._settings.abilities)]

    def names(self, environment: str, ability: str) -> tuple[str, ...]:
        """Return the tools and MCP servers of an ability in an environment: the nearest settings that say which."""
        equipment, settings = self._environments[environment], self._settings
        if ability in settings.abilities:
            return settings.abilities[ability]
        named = settings.default if equipment.tools is None else equipment.tools
        return named if named is not None else (("search",) if equipment.corpus else ())

    def tools(
        self, environment: str, ability: str, read_file: ReadFile = no_files, asked: SimulatedQuestion | None = None
    ) -> list[Tool]:
        """Return the tools of an ability in an environment, for one trajectory.

        Those over files read by `read_file`, and a simulated search is about what is `asked`.
        """
        return self._resolve(environment, self.names(environment, ability), read_file, asked)

    def common(self) -> list[Tool]:
        """Return the tools that every ability has in every environment, as kernels know them: by their names and parameters."""
        lists = [self.names(*each) for each in self.every]
        environment, names = next(iter(self._environments)), tuple(n for n in lists[0] if all(n in names for names in lists))
        return self._resolve(environment, names, no_files, None)

    def _resolve(
        self, environment: str, names: tuple[str, ...], read_file: ReadFile, asked: SimulatedQuestion | None
    ) -> list[Tool]:
        tools: list[Tool] = []
        for name in dict.fromkeys(names):
            if name == "search" and self._searches:  # an environment without a corpus has none, whoever else searches
                tools += [self._searches[environment]] if environment in self._searches else []
            else:
                tools += self._shared[name] if name in self._shared else [self._trajectory_tool(name, read_file, asked)]
        return tools

    def _trajectory_tool(self, name: str, read_file: ReadFile, asked: SimulatedQuestion | None) -> Tool:
        """Return a tool that each trajectory has for itself."""
        if isinstance(self._settings.search, SimulatedSearch) and self._simulator is not None and name == "search":
            return simulated_search(self._simulator, self._settings.search, asked)
        match name, self._model:
            case "visual_qa", ChatModel() as model:
                return files.visual_qa(read_file, model)
            case "inspect_file", ChatModel() as model:
                return files.inspect_file(read_file, self._documents, model)
            case "inspect_file", None:
                return files.file_text(read_file, self._documents)
        raise RuntimeError(f"the tool {name} was asked for before it was set up")

    async def _open(self) -> None:
        named = {name for each in self.every for name in self.names(*each)}
        if "search" in named and self._simulator is None:
            self._open_search()
        if "read_page" in named:
            self._shared["read_page"] = [self._page_reader()]
        for name, place in self._settings.own.items():
            self._shared[name] = [own_tool(name, place)]
        for name, server in self._settings.mcp.items():
            session = McpSession(name, server)
            self._sessions.append(session)
            taken = {*BUILT_IN, *self._settings.own, *(tool.name for tools in self._shared.values() for tool in tools)}
            self._shared[name] = list(await mcp_tools(session, server.tools, taken))

    def _open_search(self) -> None:
        match self._settings.search:
            case CorpusSearch(top_k=top_k):
                for name, environment in self._environments.items():
                    searches = any("search" in self.names(*each) for each in self.every if each[0] == name)
                    if searches and (environment.corpus.has_words or len(self._environments) == 1):
                        self._searches[name] = SearchTool(environment.corpus, top_k)
            case WebSearch(engine=engine, top_k=top_k, base_url=base_url, timeout_s=timeout_s):
                kind, url = _ENGINES[engine]
                searcher = kind(base_url or url, top_k, timeout_s)
                self._services.append(searcher.service)
                self._shared["search"] = [web_search(searcher)]

    def _page_reader(self) -> Tool:
        settings = self._settings.read_page
        if settings.reader == "jina":
            jina = JinaReader(settings.base_url, settings.max_chars, settings.timeout_s)
            self._services.append(jina.service)
            return read_page(jina)
        documents = Documents(settings.max_chars, settings.timeout_s, self._parser)
        return read_page(DirectReader(documents, settings.max_bytes, settings.timeout_s))

    def _chat_model(self, settings: ModelSettings | None) -> ChatModel | None:
        if settings is None:
            return None
        model = ChatModel(settings.base_url, settings.name, settings.key, settings.max_tokens, settings.timeout_s)
        self._services.append(model.service)
        return model


def own_tool(name: str, place: str) -> FunctionTool:
    """Return the function at `package.module:function` as the tool `name`. Raises ToolError if it does not exist or is
    not typed.
    """
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
