"""What `nbrl serve` prints, without an engine."""

import shlex

import pytest

from nbrl.flows.ask.endpoint import Endpoint, check_limit
from nbrl.flows.ask.equipment import of_recipe
from nbrl.flows.cli.serve import _limits
from tests.agent.tool_server import Said, serving


@pytest.mark.parametrize("window", [None, 25_600, 40_000])
def test_a_model_of_a_long_context_needs_no_options(window: int | None) -> None:
    with serving(Said({"data": [{"id": "m", "max_model_len": window}]})) as server:
        assert _limits(server.url, "") == ""


@pytest.mark.parametrize("window", [64, 1024, 8192])
def test_a_model_of_a_short_context_is_asked_with_options_that_fit(window: int) -> None:
    with serving(Said({"data": [{"id": "m", "max_model_len": window}]})) as server:
        flags = shlex.split(_limits(server.url, "k"))
        assert server.asked[0].headers["authorization"] == "Bearer k"
    assert flags[::2] == ["--set", "--set"]
    settings = of_recipe("", flags[1::2], None, False, False, print).config.agent
    check_limit(Endpoint("http://here"), {"m": window}, settings.context_tokens)
    assert settings.action_tokens <= settings.context_tokens / 8
