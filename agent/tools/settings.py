"""The tools of an agent, and their options. API keys are never settings: they are read from the host's environment."""

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from nbrl.agent.errors import ToolError
from nbrl.agent.text import check_address
from nbrl.agent.tools.names import check_tool_name

BUILT_IN = {
    "search": ("search",),
    "read_page": ("read_page",),
    "visual_qa": ("model",),
    "inspect_file": ("inspect_file", "model"),
}
"""The tools of nbrl, each with the sections of ToolSettings that it reads."""
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
Variable = Annotated[str, Field(pattern=_VARIABLE)]
Probability = Annotated[float, Field(ge=0, le=1)]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("base_url", "url", check_fields=False)
    @classmethod
    def _address(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is not None and (url or info.field_name == "base_url"):
            check_address(url)
        return url


class CorpusSearch(_Settings):
    """Search over the passages of the run's data, by BM25."""

    engine: Literal["corpus"] = Field("corpus", description="search uses the corpus")
    top_k: int = Field(1, ge=1, le=50, description="passages returned")


class WebSearch(_Settings):
    """Search of the web. The key is in SERPER_API_KEY, EXA_API_KEY or FIRECRAWL_API_KEY."""

    engine: Literal["serper", "exa", "firecrawl"] = Field(description="the service that search uses")
    top_k: int = Field(5, ge=1, le=50, description="pages returned")
    base_url: str | None = Field(None, description="address of the service; its public one when not set")
    timeout_s: float = Field(20.0, gt=0, description="maximum seconds of one search")


class ModelSettings(_Settings):
    """The model that a tool uses, at any OpenAI-compatible endpoint."""

    base_url: str = Field(description="the address up to /chat/completions")
    name: str = Field(description="name of the model at the endpoint")
    key: Variable | None = Field("OPENAI_API_KEY", description="environment variable with the API key; null: none is sent")
    max_tokens: int = Field(1_000, ge=1, description="maximum tokens of one answer")
    timeout_s: float = Field(25.0, gt=0, description="maximum seconds of one answer")


class SimulatedSearch(_Settings):
    """Search that a model answers with documents it writes, knowing the question's answers (ZeroSearch, arXiv 2505.04588).

    In training documents are noisy with a probability that changes as `noise` says; in an evaluation none is.
    """

    engine: Literal["simulated"] = Field(description="a model writes what search finds")
    model: ModelSettings = Field(description="the model that writes the documents")
    temperature: float = Field(0.8, ge=0, le=2, description="temperature of the model")
    noise: tuple[Probability, Probability] = Field(
        (0.0, 0.5), description="probability of noisy documents when training begins, and noise_iterations later"
    )
    noise_iterations: int = Field(200, ge=1, description="iterations of the training over which the noise changes")


SearchSettings = CorpusSearch | WebSearch | SimulatedSearch


class PageSettings(_Settings):
    """Reading of web pages: `direct` from the host, public addresses only; `jina` by its reader, with JINA_API_KEY if set."""

    reader: Literal["direct", "jina"] = Field(
        "direct", description="direct: this host fetches pages; jina: the reader at base_url does"
    )
    base_url: str = Field(
        "https://r.jina.ai",
        description="address of the reader",
        json_schema_extra={"acts_if": {"key": "reader", "values": ["jina"]}},
    )
    max_bytes: int = Field(
        5_000_000,
        ge=1_000,
        description="largest page",
        json_schema_extra={"acts_if": {"key": "reader", "values": ["direct"]}},
    )
    max_chars: int = Field(100_000, ge=100, description="longest text returned; the rest is cut")
    timeout_s: float = Field(20.0, gt=0, description="maximum seconds of one page")


class FileSettings(_Settings):
    """Reading of files of the workspace by `inspect_file`."""

    max_chars: int = Field(100_000, ge=100, description="longest text returned, or shown to the model; the rest is cut")
    timeout_s: float = Field(15.0, gt=0, description="maximum seconds of one file")


class McpSettings(_Settings):
    """A Model Context Protocol server: a program started on the host (`command`) or a streamable HTTP endpoint (`url`)."""

    command: tuple[str, ...] = Field((), description="program and arguments; it speaks on its standard input and output")
    environment: tuple[Variable, ...] = Field(
        (),
        description="variables of the host's environment that the program gets",
        json_schema_extra={"acts_if": {"key": "command", "values": []}},
    )
    url: str = Field("", description="address of a streamable HTTP endpoint; instead of command")
    headers: dict[str, Variable] = Field(
        default_factory=dict,
        description="name of a header: environment variable with its value",
        json_schema_extra={"acts_if": {"key": "url", "values": []}},
    )
    per: Literal["trajectory", "runner"] = Field(
        "trajectory",
        description="trajectory: each trajectory that calls it has a server, or a session of an endpoint that has sessions, "
        "of its own; runner: all trajectories of a runner share one, for servers that keep nothing or cost much",
    )
    tools: tuple[str, ...] | None = Field(None, description="the tools of this server that are used; all when not set")
    timeout_s: float = Field(20.0, gt=0, description="maximum seconds of one call, and of the start")

    @model_validator(mode="after")
    def _one_way(self) -> "McpSettings":
        if bool(self.command) == bool(self.url):
            raise ValueError("an MCP server has either a command or a url")
        return self


class ToolSettings(_Settings):
    """Tools by ability. A list names tools (search, read_page, visual_qa, inspect_file, one of `own`) or complete MCP servers."""

    default: tuple[str, ...] | None = Field(
        None, description="tools of abilities that are not named; when not set, search if there is a corpus"
    )
    abilities: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="name of an ability: its tools; may be empty")
    search: SearchSettings = Field(CorpusSearch(), discriminator="engine", description="what a search finds its results with")
    read_page: PageSettings = PageSettings()
    inspect_file: FileSettings = FileSettings()
    model: ModelSettings | None = None
    mcp: dict[str, McpSettings] = Field(default_factory=dict, description="servers by name")
    own: dict[str, str] = Field(default_factory=dict, description="your own tools, name of a tool: package.module:function")

    @field_validator("search", mode="before")
    @classmethod
    def _engine(cls, search: Any) -> Any:
        return {"engine": "corpus", **search} if isinstance(search, dict) else search

    @model_validator(mode="after")
    def _names(self) -> "ToolSettings":
        all_names = [*BUILT_IN, *self.own, *self.mcp]
        for name in (*self.own, *self.mcp):
            try:
                check_tool_name(name)
            except ToolError as error:
                raise ValueError(str(error)) from None
            if all_names.count(name) > 1:
                raise ValueError(f"{name!r} is the name of two tools; give one of them another")
        try:
            for name in self.named():
                self._check_known(name)
        except ToolError as error:
            raise ValueError(str(error)) from None
        return self

    def check_used(self, also: Iterable[str] = ()) -> None:
        """Raises ToolError for settings without effect, and tools that do not exist. `also` are names that environments use."""
        also = list(also)
        used = {*self.named(), *also}
        for name in also:
            self._check_known(name)
        for name in (*self.own, *self.mcp):
            if name not in used:
                raise ToolError(f"nothing has the tool {name!r}: name it in default or in abilities, or leave it out")
        if self.default is None and self.search.engine == "corpus":  # environments with a corpus have it without a name
            used.add("search")
        for section in dict.fromkeys(section for sections in BUILT_IN.values() for section in sections):
            readers = [name for name, sections in BUILT_IN.items() if section in sections]
            if not used & {*readers} and getattr(self, section) != type(self).model_fields[section].default:
                raise ToolError(
                    f"nothing has the tool {' or '.join(readers)}: name it in default or in abilities, or leave {section} out"
                )
        if self.model is None and "visual_qa" in used:
            raise ToolError("visual_qa asks a model: set model.base_url and model.name")

    def _check_known(self, name: str) -> None:
        all_names = [*BUILT_IN, *self.own, *self.mcp]
        if name not in all_names:
            near = difflib.get_close_matches(name, all_names, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ToolError(f"there is no tool {name!r}, there are {', '.join(all_names)}{hint}")

    def named(self) -> set[str]:
        """Return every name in a list."""
        return {name for names in (self.default or (), *self.abilities.values()) for name in names}

    def needs_corpus(self) -> bool:
        """Return whether a list names the search of the corpus."""
        return self.search.engine == "corpus" and "search" in self.named()
