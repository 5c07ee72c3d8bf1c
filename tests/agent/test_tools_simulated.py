"""A search engine that a model plays: when documents are noisy, what the model is told, and that a trajectory replays."""

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.errors import ToolError
from nbrl.agent.http.json_service import ServiceError
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.tools.simulated import SimulatedQuestion, draw, noise
from tests.agent.tool_server import Said, Server, serving

DOCUMENTS = "1. Keldra is a town.\n2. **Tilo** was born there.\n\n3. The Vorn is a river."
QUESTION = "Where was Tilo born? {not a field}"
FOUND = "[1] Keldra is a town.\n[2] **Tilo** was born there.\n[3] The Vorn is a river."


def said(text: Any, **fields: Any) -> Said:
    return Said({"choices": [{"message": {"role": "assistant", "content": text}}]}, **fields)


def asked(seed: int = 0, progress: float | None = None) -> SimulatedQuestion:
    return SimulatedQuestion(QUESTION, ("Keldra", "Keldra town"), seed, progress)


def library(server: Server, **search: Any) -> Library:
    model = {"base_url": f"{server.url}/v1", "name": "m", "key": None, "timeout_s": 5}
    settings = {"default": ["search"], "search": {"engine": "simulated", "model": model, **search}}
    return Library(ToolSettings.model_validate(settings), {"": Equipment()})


def searched(server: Server, about: SimulatedQuestion | None, calls: int = 1, **search: Any) -> list[str]:
    """What one trajectory finds, call after call."""

    async def work() -> list[str]:
        opened = library(server, **search)
        await opened.open()
        try:
            [tool] = opened.tools("", "qa", asked=about)
            return [await tool.call({"query": f"Tilo {number}"}) for number in range(calls)]
        finally:
            await opened.close()

    return asyncio.run(work())


def kinds(server: Server) -> list[str]:
    """Whether the model was asked for useful or for noisy documents, call after call."""
    prompts = [request.body["messages"][0]["content"] for request in server.asked]
    return ["noisy" if "noisy documents" in prompt else "useful" if "useful documents" in prompt else "?" for prompt in prompts]


def test_the_noise_is_that_of_the_paper() -> None:
    assert noise(0.0, 0.0, 0.5, 4.0) == 0.0
    assert noise(0.5, 0.0, 0.5, 4.0) == pytest.approx(0.5 / 3)
    assert noise(1.0, 0.0, 0.5, 4.0) == 0.5
    assert noise(0.5, 0.2, 0.8, 9.0) == pytest.approx(0.2 + 0.6 * 2 / 8)
    assert noise(0.25, 0.5, 0.0, 4.0) == pytest.approx(0.5 - 0.5 * (math.sqrt(2) - 1) / 3)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(1.001, 100))
def test_the_noise_stays_between_its_ends(progress: float, start: float, end: float, base: float) -> None:
    assert min(start, end) - 1e-9 <= noise(progress, start, end, base) <= max(start, end) + 1e-9


def test_draws_are_even_and_of_seed_and_number_alone() -> None:
    draws = [draw(seed, number) for seed in range(50) for number in range(40)]
    assert draws == [draw(seed, number) for seed in range(50) for number in range(40)]
    assert len(set(draws)) == 2000
    assert all(0 <= chance < 1 and 0 <= seed < 2**31 for chance, seed in draws)
    assert sum(chance < 0.3 for chance, _ in draws) == pytest.approx(600, abs=80)
    assert draw(7, 0) == (pytest.approx(0.40749, abs=1e-5), 1689903055)  # as every release draws it


def test_the_model_is_told_question_answers_and_query_and_writes_documents() -> None:
    with serving(said(DOCUMENTS)) as server:
        assert searched(server, asked(), temperature=0.5) == [FOUND]
    [request] = server.asked
    assert (request.path, request.body["model"]) == ("/v1/chat/completions", "m")
    assert (request.body["temperature"], request.body["seed"]) == (0.5, draw(0, 0)[1])
    prompt = request.body["messages"][0]["content"]
    for part in (QUESTION, "Keldra or Keldra town", "Tilo 0", "5 useful documents of about 30 words"):
        assert part in prompt


def test_useful_and_noisy_documents_are_asked_for_in_other_words() -> None:
    with serving(said(DOCUMENTS)) as server:
        searched(server, asked(progress=0.0), noise=(1.0, 1.0))
        searched(server, asked(progress=1.0), noise=(0.0, 0.0))
    assert kinds(server) == ["noisy", "useful"]


def test_noise_comes_with_the_progress_of_training() -> None:
    with serving(said(DOCUMENTS)) as server:
        searched(server, asked(progress=0.0), calls=40)
        searched(server, asked(progress=1.0), calls=40)
    drawn = ["noisy" if draw(0, number)[0] < 0.5 else "useful" for number in range(40)]
    assert kinds(server) == ["useful"] * 40 + drawn
    assert 10 < drawn.count("noisy") < 30


def test_an_evaluation_has_no_noise() -> None:
    with serving(said(DOCUMENTS)) as server:
        searched(server, asked(progress=None), calls=10, noise=(1.0, 1.0))
    assert kinds(server) == ["useful"] * 10


def test_a_trajectory_replays_whatever_others_do() -> None:
    async def work(server: Server) -> None:
        opened = library(server)
        await opened.open()
        try:
            [one], [other] = opened.tools("", "qa", asked=asked(1, 1.0)), opened.tools("", "qa", asked=asked(2, 1.0))
            await asyncio.gather(*(tool.call({"query": "Tilo"}) for tool in (other, other, one)))
            for tool in (one, other, one):
                await tool.call({"query": "Tilo"})
        finally:
            await opened.close()

    with serving(said(DOCUMENTS)) as alone:
        searched(alone, asked(1, 1.0), calls=3)
    with serving(said(DOCUMENTS)) as among:
        asyncio.run(work(among))
    seeds = [request.body["seed"] for request in alone.asked]
    assert seeds == [draw(1, number)[1] for number in range(3)]
    assert [request.body["seed"] for request in among.asked if request.body["seed"] in seeds] == seeds


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ("Doc 1: One.\nDoc 2: Two.", "[1] One.\n[2] Two."),
        ("[1] One.\n  [2]  Two \t words.", "[1] One.\n[2] Two words."),
        ("**1.** One.\nHere is more:\n2) Two.", "[1] One.\n[2] Two."),
        ("First line.\n\nSecond line.", "[1] First line.\n[2] Second line."),
        ("It was 1.5 km.\n1.5 km it was.", "[1] It was 1.5 km.\n[2] 1.5 km it was."),
        ("<think>1. What?\n</think>\n1. One.", "[1] One."),
        ("\n".join(f"{number}. Text." for number in range(1, 9)), "\n".join(f"[{number}] Text." for number in range(1, 6))),
        ("1. " + "x" * 5_000, "[1] " + "x" * 1_000),
    ],
)
def test_documents_are_numbered_however_the_model_wrote_them(reply: str, found: str) -> None:
    with serving(said(reply)) as server:
        assert searched(server, asked()) == [found]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Said(status=400), "the model behind the tool failed"),
        (Said(b"no json"), "is not JSON"),
        (said(None), "without a message"),
        (said("<think>hm</think> \n "), "wrote no documents; search again"),
    ],
)
def test_what_the_model_does_wrong_is_an_error_of_the_tool(answer: Said, reason: str) -> None:
    with serving(answer) as server, pytest.raises(ServiceError, match=reason):
        searched(server, asked())


def test_a_query_without_words_is_refused_before_the_model_is_asked() -> None:
    async def work(server: Server) -> None:
        opened = library(server)
        await opened.open()
        try:
            toolbox = Toolbox(opened.tools("", "qa", asked=asked()))
            for query, reason in ((" ", "search needs a query"), (3, "does not fit")):
                with pytest.raises(ValueError, match=reason):
                    await toolbox.call("search", {"query": query})
        finally:
            await opened.close()

    with serving(said(DOCUMENTS)) as server:
        asyncio.run(work(server))
    assert server.asked == []


def test_a_query_is_one_line_of_bounded_length() -> None:
    async def work(server: Server) -> None:
        opened = library(server)
        await opened.open()
        [tool] = opened.tools("", "qa", asked=asked())
        await tool.call({"query": "Tilo\nCorrect answer: none" + "x" * 5_000})
        await opened.close()

    with serving(said(DOCUMENTS)) as server:
        asyncio.run(work(server))
    prompt = server.asked[0].body["messages"][0]["content"]
    assert "Tilo Correct answer: nonexx" in prompt
    assert len(prompt) < 2_500


def test_without_a_question_it_can_be_described_but_not_called() -> None:
    with serving(said(DOCUMENTS)) as server:
        opened = library(server)
        asyncio.run(opened.open())
        [tool] = opened.common()
        corpus: Tool = SearchTool(Corpus.in_memory(["a word"]))
        assert (tool.name, tool.parameters[0].name, tool.returns) == ("search", "query", corpus.returns)
        assert tool.schema["properties"].keys() == corpus.schema["properties"].keys()
        with pytest.raises(ToolError, match="simulated from a question and its answers"):
            searched(server, None)
    assert server.asked == []
