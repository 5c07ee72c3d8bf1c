import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.protocol import Action, Malformed, parse_action


def test_a_well_formed_action_is_parsed_and_stripped() -> None:
    assert parse_action("<think> look it up </think>\n<code>\nprint(1)\n</code>") == Action("look it up", "print(1)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no <think>"),
        ("<think>a</think>", "no <code>"),
        ("<think>a</think><code>b", "not closed"),
        ("<think>a</think><think>b</think><code>c</code>", "more than one <think>"),
        ("<think>a</think><code>b</code><code>c</code>", "more than one <code>"),
        ("<code>b</code><think>a</think>", "nothing around"),
        ("hello <think>a</think><code>b</code>", "nothing around"),
        ("<think>a</think><code>b</code> bye", "nothing around"),
        ("<think>a</think><code>  </code>", "empty"),
    ],
)
def test_every_malformed_action_says_why(text: str, reason: str) -> None:
    parsed = parse_action(text)
    assert isinstance(parsed, Malformed)
    assert reason in parsed.reason


def test_other_tags_can_be_chosen() -> None:
    assert parse_action("<plan>p</plan><run>r</run>", "plan", "run") == Action("p", "r")


@given(st.lists(st.sampled_from(["<think>", "</think>", "<code>", "</code>", "x", "\n", "<"]), max_size=40))
def test_no_text_raises(pieces: list[str]) -> None:
    assert isinstance(parse_action("".join(pieces)), Action | Malformed)
