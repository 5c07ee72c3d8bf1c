"""Chat templates are programs of strangers: what they do to the process that renders them is one sentence."""

import os
import signal
from typing import Any

import pytest

from nbrl.agent.errors import TokenizerError
from nbrl.agent.tokens import rendering
from nbrl.agent.tokens.rendering import render

pytestmark = pytest.mark.process
DAY = "2024-07-26"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
HEAVY = {
    "a loop in a loop": LOOP,
    "calls that double": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
    "words without end": "{{ lipsum(n=10000000) | length }}",
    "a power of a power": "{{ 9 ** (9 ** 9) }}",
    "many digits": "{{ (7 ** 9999999) ~ '' }}",
    "a long word": "{{ 'a' * 10000000000 }}",
    "a word that is filled": "{{ 'a' | center(9000000000) }}",
    "a word that doubles": "{% set n = namespace(w='ab') %}{% for i in range(60) %}{% set n.w = n.w + n.w %}{% endfor %}",
}
LIGHT = {
    "itself": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
    "brackets without end": ("{{ " + "(" * 100_000, "recursion|parentheses|expression"),
    "five million letters": ("{{ 'a' * 5000000 }}", "5000000 characters"),
    "a refusal": ("{{ raise_exception('no such role') }}", "^no such role$"),
    "a long refusal": ("{{ raise_exception('no ' * 100000) }}", r"^(no )+n?$"),
    "an answer of its own": ('\n{"text": "mine"}\n{{ nothing.there }}', "undefined"),
    "the class of a text": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "another file": ("{% include '/etc/passwd' %}", "loader"),
}


@pytest.mark.parametrize("source", [LOOP, *(pytest.param(each, marks=pytest.mark.more) for each in [*HEAVY.values()][1:])])
@pytest.mark.attack(
    tried="A chat template that loops for hours, or asks for all memory",
    wall="a process of its own, with two processor seconds and 1 GB",
    effect="one sentence",
)
def test_a_template_that_takes_too_much_is_one_sentence_and_the_next_is_rendered(source: str) -> None:
    with pytest.raises(TokenizerError) as refused:
        render(source, DAY, {})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1_100
    assert render("{{ word }}", DAY, {"word": "next"}) == "next"


@pytest.mark.parametrize(("source", "words"), LIGHT.values(), ids=LIGHT)
@pytest.mark.attack(
    tried="A chat template that reaches for Python's classes, for files, or forges its result",
    wall="a sandbox without attributes and files; one line of JSON is the answer",
    effect="one sentence",
)
def test_what_a_template_says_or_breaks_is_its_refusal(source: str, words: str) -> None:
    with pytest.raises(TokenizerError, match=rf"(?i){words}"):
        render(source, DAY, {})


@pytest.mark.parametrize("text", ["", "\n{}\n", '{"refused": "x"}', "\ud800", "\x00\u2028", "é🙂"])
def test_every_text_comes_back_as_it_was(text: str) -> None:
    assert render("{{ message }}", DAY, {"message": text}) == text


def test_names_of_variables_are_the_templates_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"source": "a", "day": "b", "variables": "c", "self_": "d"}
    assert render("{{ source }}{{ day }}{{ variables }}{{ self_ }}", DAY, names) == "abcd"


def test_the_process_has_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "canary")
    render("", DAY, {})
    process = rendering._process
    assert process is not None
    with open(f"/proc/{process.pid}/environ", "rb") as file:
        assert b"canary" not in file.read()


def test_a_process_that_was_killed_is_started_again() -> None:
    render("", DAY, {})
    process = rendering._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(TokenizerError, match="too long, or too much memory"):
        render("a", DAY, {})
    assert render("a", DAY, {}) == "a"
