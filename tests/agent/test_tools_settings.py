"""Which tools an ability has: by typed settings, refused before any work when they cannot be."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.functions import tool
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.settings import CorpusSearch, ToolSettings

CORPUS = ["Tilo was born in Keldra."]
MODEL = {"base_url": "http://127.0.0.1:1/v1", "name": "m"}


def double(number: int) -> int:
    """Doubles a number."""
    return 2 * number


@tool
def halve(number: int) -> float:
    """Halves a number."""
    return number / 2


def brings(passage: str, tools: tuple[str, ...] | None = None) -> Equipment:
    return Equipment(Corpus.in_memory([passage]), tools)


def names(settings: dict[str, Any], ability: str, corpus: list[str] | None = None) -> list[str]:
    async def work() -> list[str]:
        given = ToolSettings.model_validate(settings)
        given.check_used()
        library = Library(given, {"": Equipment(Corpus.in_memory(CORPUS if corpus is None else corpus))})
        await library.open()
        try:
            return [tool.name for tool in library.tools("", ability)]
        finally:
            await library.close()

    return asyncio.run(work())


@pytest.mark.parametrize("ability", ["arithmetic", "one_hop", "two_hop", "notepad", "qa", ""])
def test_without_settings_every_ability_searches_the_corpus(ability: str) -> None:
    assert names({}, ability) == ["search"]
    assert names({}, ability, corpus=[]) == []


def test_an_ability_has_the_tools_that_it_names() -> None:
    settings = {
        "default": ["search"],
        "abilities": {"math": [], "qa": ["search", "read_page", "visual_qa"], "files": ["inspect_file"]},
        "search": {"engine": "serper"},
        "model": MODEL,
    }
    assert names(settings, "math", []) == []
    assert names(settings, "qa", []) == ["search", "read_page", "visual_qa"]
    assert names(settings, "files", []) == ["inspect_file"]
    assert names(settings, "other", []) == ["search"]


def test_what_every_ability_has_is_common() -> None:
    async def common(settings: dict[str, Any]) -> list[str]:
        library = Library(ToolSettings.model_validate(settings), {"": Equipment(Corpus.in_memory(CORPUS))})
        await library.open()
        return [tool.name for tool in library.common()]

    assert asyncio.run(common({})) == ["search"]
    assert asyncio.run(common({"default": ["search", "read_page"], "abilities": {"math": ["read_page"]}})) == ["read_page"]
    assert asyncio.run(common({"abilities": {"math": []}})) == []


def test_an_own_tool_is_a_function_by_its_place() -> None:
    own = {"twice": f"{__name__}:double", "half": f"{__name__}:halve"}
    assert names({"default": ["twice", "half"], "own": own}, "qa") == ["twice", "half"]


@pytest.mark.parametrize(
    "place", ["no.such.module:f", f"{__name__}:missing", f"{__name__}:CORPUS", "x", ":", f"{__name__}:names"]
)
def test_an_own_tool_that_is_not_there_is_refused(place: str) -> None:
    with pytest.raises(ToolError):
        names({"default": ["mine"], "own": {"mine": place}}, "qa")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"default": ["serch"]}, "there is no tool 'serch', there are search, .*did you mean 'search'?"),
        ({"abilities": {"qa": ["read_pages"]}}, "did you mean 'read_page'"),
        ({"default": ["visual_qa"]}, "visual_qa asks a model: set model.base_url and model.name"),
        ({"model": MODEL}, "nothing has the tool visual_qa or inspect_file"),
        ({"mcp": {"lab": {"command": ["x"]}}}, "nothing has the tool 'lab'"),
        ({"default": ["search"], "own": {"search": "a:b"}}, "is the name of two tools"),
        ({"default": ["print"], "own": {"print": "a:b"}}, "cannot be a tool's name"),
        ({"default": ["lab"], "mcp": {"lab": {}}}, "either a command or a url"),
        ({"default": ["lab"], "mcp": {"lab": {"command": ["x"], "url": "http://a"}}}, "either a command or a url"),
        ({"search": {"engine": "bing"}}, "engine"),
        ({"search": {"engine": "serper", "key": "secret"}}, "Extra inputs"),
        ({"search": {"engine": "exa", "base_url": "http://user:password@a"}}, "without a name or password in it"),
        ({"search": {"engine": "exa"}}, "nothing has the tool search"),
        ({"search": {"engine": "simulated", "model": MODEL}}, "nothing has the tool search"),
        ({"default": ["search"], "search": {"engine": "simulated"}}, "model"),
        (
            {"default": ["search"], "search": {"engine": "simulated", "model": MODEL, "noise": [0, 1.5]}},
            "less than or equal to 1",
        ),
        ({"default": ["search"], "read_page": {"max_chars": 500}}, "nothing has the tool read_page"),
        ({"default": ["search"], "inspect_file": {"timeout_s": 5}}, "nothing has the tool inspect_file"),
        ({"default": ["inspect_file"], "model": {**MODEL, "key": "sk-this is a key"}}, "pattern"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises((ValidationError, ToolError), match=reason):
        ToolSettings.model_validate(settings).check_used()


def test_an_environment_has_its_own_corpus_and_the_tools_that_it_names() -> None:
    async def work() -> list[list[str]]:
        settings = ToolSettings.model_validate({"abilities": {"math": []}, "own": {"twice": f"{__name__}:double"}})
        environments = {
            "sums": Equipment(tools=("twice",)),
            "tea": brings("Tea grows in Assam."),
            "none": Equipment(),
        }
        library = Library(settings, environments | {"coffee": brings("Coffee grows in Kaffa.", ("search", "twice"))})
        await library.open()
        every = [(name, ability) for name in environments for ability in ("qa", "math")]
        named = [[tool.name for tool in library.tools(*each)] for each in every]
        asked = [library.tools(name, "qa")[0] for name in ("tea", "coffee")]
        return [*named, *[[await tool.call({"query": "grows"})] for tool in asked]]

    assert asyncio.run(work()) == [["twice"], [], ["search"], [], [], [], ["Tea grows in Assam."], ["Coffee grows in Kaffa."]]


def test_settings_of_a_tool_that_only_an_environment_uses_are_used() -> None:
    settings = ToolSettings.model_validate({"own": {"twice": f"{__name__}:double"}})
    settings.check_used(["twice"])
    with pytest.raises(ToolError, match="nothing has the tool 'twice'"):
        settings.check_used(["search"])
    with pytest.raises(ToolError, match=r"there is no tool 'twic', .*did you mean 'twice'"):
        settings.check_used(["twic"])


def test_search_is_of_the_corpus_where_no_engine_is_named() -> None:
    settings = ToolSettings.model_validate({"search": {"top_k": 3}})
    assert settings.search == CorpusSearch(top_k=3)
