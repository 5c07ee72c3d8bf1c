"""Turns a command's options about tools into the settings and passages of a tool library."""

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.settings import SimulatedSearch, ToolSettings, WebSearch
from nbrl.agent.tools.web import search
from nbrl.flows.ask.endpoint import Endpoint, chat_url, checked, checked_file
from nbrl.infra.home import Home
from nbrl.infra.manifest import file_sha256
from nbrl.infra.parse import json_value, yaml_value
from nbrl.infra.paths import content
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.rollout.corpora import open_corpus

TOP_K = 5
SEARCH_KEYS = {"serper": search.SERPER_KEY, "exa": search.EXA_KEY, "firecrawl": search.FIRECRAWL_KEY}


@dataclass(frozen=True)
class ToolOptions:
    """If `names` is None: search if there is something to search, inspect_file if there are files, and every MCP server."""

    names: list[str] | None = None
    corpus: Path | None = None
    web: str | None = None
    mcp: tuple[str, ...] = ()
    file: Path | None = None
    ability: str = ""

    def settings(self, endpoint: Endpoint | None, key: str | None, attached: bool) -> ToolSettings:
        """`visual_qa` uses `endpoint` with the key in the environment variable `key`; it is None if actions are replayed.

        Raises ConfigError.
        """
        if self.file is not None:
            return self._of_file(self.file)
        if self.ability:
            raise ConfigError("--ability chooses among the abilities of --tool-settings; give that file too")
        if self.corpus is not None and self.web is not None:
            raise ConfigError("--corpus and --web both make the tool search; give one of them")
        servers = {f"mcp{number}" if number > 1 else "mcp": _server(place) for number, place in enumerate(self.mcp, 1)}
        names = self.names
        if names is None:
            names = ["search"] * (self.corpus is not None or self.web is not None) + ["inspect_file"] * attached
        if "search" in names and self.corpus is None and self.web is None:
            raise ConfigError("the tool search needs something to look in; give --corpus FILE or --web ENGINE")
        if "search" not in names and (self.corpus is not None or self.web is not None):
            raise ConfigError("--corpus and --web are for the tool search, which --tools leaves out; name it there")
        settings: dict[str, Any] = {"default": (*names, *servers), "mcp": servers}
        if "search" in names:
            settings["search"] = {"engine": self.web or "corpus", "top_k": TOP_K}
        if "visual_qa" in names:
            if endpoint is None:
                raise ConfigError("the recording answers for visual_qa; leave it out of --tools, or give --endpoint")
            if endpoint.model is None:
                raise ConfigError("the tool visual_qa asks the model about images; name it by --model")
            settings["model"] = {"base_url": chat_url(endpoint), "name": endpoint.model, "key": key}
        return _used(checked(ToolSettings, **settings), "the tools")

    def _of_file(self, file: Path) -> ToolSettings:
        if self.names is not None or self.web is not None or self.mcp:
            raise ConfigError(f"the tools are described in {file}; leave out --tools, --web and --mcp")
        try:
            tree = yaml_value(content(file).decode())
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} cannot be read as YAML: {error}") from error
        if not isinstance(tree, dict):
            raise ConfigError(f"{file} holds no settings; write the keys of a recipe's `rollout.tools`")
        settings = _used(checked_file(ToolSettings, tree, file), str(file))
        if isinstance(settings.search, SimulatedSearch):
            raise ConfigError(f"{file} simulates search from a question's answers, which nobody knows here; set another engine")
        if self.corpus is not None and not settings.needs_corpus():
            raise ConfigError(f"no ability of {file} searches the corpus; leave out --corpus, or name search in the file")
        if self.corpus is None and settings.needs_corpus():
            raise ConfigError(f"{file} names search, which needs something to look in; give --corpus FILE")
        if self.ability and self.ability not in settings.abilities:
            raise ConfigError(f"{file} has no ability {self.ability!r}; it has {', '.join(settings.abilities) or 'none'}")
        return settings

    def passages(self) -> list[str]:
        """Return the passages for `search`: the texts of a .jsonl file, else each line that is not empty. Raises ConfigError."""
        if self.corpus is None:
            return []
        try:
            # A passage may contain other line separators than a newline.
            lines = [line for line in self.corpus.read_text(encoding="utf-8-sig").split("\n") if line.strip()]
        except (OSError, ValueError) as error:
            raise ConfigError(f"the corpus {self.corpus} cannot be read as text: {error}") from error
        passages = [_passage(line, f"{self.corpus}:{number}") for number, line in enumerate(lines, 1)] if self._jsonl else lines
        if not passages:
            raise ConfigError(f"the corpus {self.corpus} is empty; give a file with one passage per line")
        return passages

    def open_corpus(self, say: Callable[[str], None]) -> Corpus:
        """Return what `search` looks in. A large one is indexed once, which `say` hears of. Raises ConfigError or InfraError."""
        if self.corpus is None:
            return Corpus.in_memory([])
        try:
            digest = f"{file_sha256(self.corpus)}-{'jsonl' if self._jsonl else 'lines'}"
        except OSError as error:
            raise ConfigError(f"the corpus {self.corpus} cannot be read as text: {error}") from error
        return open_corpus(Home(), digest, lambda: pa.chunked_array([pa.array(self.passages(), pa.large_string())]), say)

    @property
    def _jsonl(self) -> bool:
        return self.corpus is not None and self.corpus.suffix == ".jsonl"


def _used(settings: ToolSettings, where: str) -> ToolSettings:
    try:
        settings.check_used()
    except ToolError as error:
        raise ConfigError(f"{where}: {error}") from error
    return settings


def require_keys(tools: ToolSettings, ability: str) -> None:
    """Raises ConfigError if a tool of this ability needs a key that the environment lacks, since all its calls would fail."""
    names = tools.abilities.get(ability, tools.default or ())
    if "search" in names and isinstance(tools.search, WebSearch):
        engine = tools.search.engine
        _require(SEARCH_KEYS[engine], f"the tool search asks {engine}", "leave the tool out")
    if "visual_qa" in names and tools.model is not None and tools.model.key is not None:
        _require(tools.model.key, "the tool visual_qa asks a model", "set model.key to null where none is needed")


def _require(variable: str, asking: str, otherwise: str) -> None:
    if not os.environ.get(variable, "").strip():
        raise ConfigError(f"{asking} with a key, and the environment variable {variable} holds none; set it, or {otherwise}")


def _passage(line: str, where: str) -> str:
    try:
        row = json_value(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {error}") from error
    match row:
        case str(text) | {"passage": str(text)} | {"text": str(text)}:
            return text.encode("utf-8", "replace").decode()  # of half a character, which JSON can escape, a question mark
    raise ConfigError(f'{where} has no text; a line is a string or an object with "passage" or "text"')


def _server(place: str) -> dict[str, Any]:
    if place.startswith(("http://", "https://")):
        return {"url": place}
    try:
        command = shlex.split(place)
    except ValueError as error:
        raise ConfigError(f"--mcp {place!r} is no command line: {error}") from error
    if not command:
        raise ConfigError("--mcp is empty; give a command line or an address")
    return {"command": command}
