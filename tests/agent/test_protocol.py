import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nbrl.agent.grammar import Action, CodeStyle, Grammar, Malformed, Thinking
from nbrl.agent.settings import AgentSettings

TAGS = Grammar()
FENCED = Grammar(code_style="fence")
NATIVE = Grammar(thinking="native")
NATIVE_FENCED = Grammar(thinking="native", code_style="fence")
BLOCK = "```python\nprint(1)\n```"


def test_a_well_formed_action_is_parsed_and_stripped() -> None:
    assert TAGS.parse("<think> look it up </think>\n<code>\nprint(1)\n</code>") == Action("look it up", "print(1)")
    assert FENCED.parse(f"<think> look it up </think>\n\n{BLOCK}\n") == Action("look it up", "print(1)")


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
    parsed = TAGS.parse(text)
    assert isinstance(parsed, Malformed)
    assert reason in parsed.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BLOCK, "no <think>"),
        ("<think>a</think>\nprint(1)", "no line ```python"),
        ("<think>a</think>\n```\nprint(1)\n```", "no line ```python"),
        (f"<think>a</think>{BLOCK}", "no line ```python"),
        ("<think>a</think>\n```python\nprint(1)", "not closed"),
        ("<think>a</think>\n```python\nprint(1)```", "not closed"),
        (f"<think>a</think>\n{BLOCK}\n{BLOCK}", "more than one ``` block"),
        ("<think>a</think>\n```\n```python", "closes with ```"),
        (f"<think>a</think>\nSee:\n{BLOCK}", "nothing around"),
        (f"<think>a</think>\n{BLOCK}\nDone.", "nothing around"),
        (f"<think>a</think>\n{BLOCK}\nsee ``` and ```", "nothing around"),
        ("<think>a</think>\n```python\n\n```", "empty"),
        (f"<think>a\n{BLOCK}\n</think>\n{BLOCK}", "more than one ``` block"),
    ],
)
def test_every_malformed_fence_says_why(text: str, reason: str) -> None:
    parsed = FENCED.parse(text)
    assert isinstance(parsed, Malformed)
    assert reason in parsed.reason


def test_a_cell_in_a_fence_may_hold_tags_and_back_quotes() -> None:
    cell = 'text = "<code>``` </code>"\nprint(f"""\n  ```\n""")'
    assert FENCED.parse(f"<think>a</think>\n```python\n{cell}\n```") == Action("a", cell)


@pytest.mark.parametrize("opened", ["<think>\n", ""])
def test_native_thinking_may_say_anything(opened: str) -> None:
    musing = f"I should write <code>x</code>, or\n{BLOCK}\n, not <think> again"
    assert NATIVE.parse(f"{opened}{musing}\n</think>\n\n<code>y = '</think>'</code>") == Action(musing, "y = '</think>'")
    assert NATIVE_FENCED.parse(f"{opened}{musing}\n</think>\n\n{BLOCK}") == Action(musing, "print(1)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<code>b</code>", "no thinking before </think>"),
        ("<think>for ever", "not ended by </think>"),
        ("<think>a</think>", "no <code>"),
        ("<think>a</think> so: <code>b</code>", "nothing around"),
        ("<think>a</think><code>b</code><code>c</code>", "more than one <code>"),
        ("<think>a</think><code></code>", "empty"),
    ],
)
def test_native_thinking_is_followed_by_one_cell(text: str, reason: str) -> None:
    parsed = NATIVE.parse(text)
    assert isinstance(parsed, Malformed)
    assert reason in parsed.reason


def test_other_tags_can_be_chosen() -> None:
    assert Grammar(think_tag="plan").parse("<plan>p</plan><code>r</code>") == Action("p", "r")


PIECES = ["<think>", "</think>", "<code>", "</code>", "```python", "```", "x", "\n", "<", " "]


@given(st.lists(st.sampled_from(PIECES), max_size=40), st.sampled_from([TAGS, FENCED, NATIVE, NATIVE_FENCED]))
def test_no_text_raises(pieces: list[str], grammar: Grammar) -> None:
    parsed = grammar.parse("".join(pieces))
    assert parsed.code.strip() if isinstance(parsed, Action) else parsed.reason


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="<`"), max_size=40)


@given(
    PLAIN, PLAIN.filter(lambda code: bool(code.strip())), st.sampled_from(["tag", "native"]), st.sampled_from(["tag", "fence"])
)
def test_what_is_written_in_the_form_is_read_back(think: str, code: str, thinking: Thinking, style: CodeStyle) -> None:
    grammar = Grammar(thinking=thinking, code_style=style)
    cell = f"<code>{code}</code>" if style == "tag" else f"\n```python\n{code}\n```"
    body = code.strip()
    blanks = re.search(r"[ \t]*$", code[: code.index(body)])
    assert blanks is not None
    action = grammar.parse(f"<think>{think}</think>{cell}")
    assert action == Action(think.strip(), blanks[0] + body)
    assert grammar.parse(grammar.write(action.think, action.code)) == action


@pytest.mark.parametrize("grammar", [TAGS, NATIVE, FENCED, NATIVE_FENCED])
@pytest.mark.parametrize("cell", ["    a = 1\n    print(a)", "\tif a:\n\t\tb()\n\tc()", "    a = 1\nb = 2", "  x"])
def test_a_cell_keeps_its_indentation(grammar: Grammar, cell: str) -> None:
    assert grammar.parse(grammar.write("t", f"\n \n{cell}\n  ")) == Action("t", cell)


def test_the_prompt_asks_for_the_form_that_is_parsed() -> None:
    assert (
        "think inside <plan></plan>, then write one cell inside <code></code>."
        in AgentSettings(think_tag="plan").render_system_prompt("").text
    )
    shown = AgentSettings(thinking="native", code_style="fence").render_system_prompt("").text
    assert "think first, then write one cell as one ```python block." in shown
    assert "<think>" not in shown
    assert "<code>" not in shown


@pytest.mark.parametrize(
    ("prompt", "own"),
    [
        ("{form}\n{tools}\nAgain: {form}", ["<plan>", "</plan>", "<code>", "</code>"] * 2),
        ("Use <{think}> and <{code}>. {tools!s:>40}", ["<plan>", "<code>"]),
        ("{{<code>}} {tools}<plan>", ["<code>", "<plan>"]),
    ],
)
def test_only_the_recipes_own_tags_are_marked_in_a_system_prompt(prompt: str, own: list[str]) -> None:
    settings, told = AgentSettings(think_tag="plan", system_prompt=prompt), "f(): <plan></plan><code>"
    said = settings.render_system_prompt(told, " Write <code>. ")
    filled = prompt.format(form=settings.grammar.form, tools=told, think="plan", code="code")
    assert said.text == f"{filled}\nWrite <code>."
    assert [said.text[first:last] for first, last in said.tags] == own
    tools = said.text.index(told)
    assert not any(tools <= first < tools + len(told) for first, _ in said.tags)
    assert said.tags[-1][1] <= said.text.rindex("\nWrite")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"code_style": "fence", "system_prompt": "Write <{code}>."}, "code_style tag"),
        ({"thinking": "native", "system_prompt": "Think in <{think}>."}, "thinking tag"),
        ({"system_prompt": "{surprise}"}, "every other brace is written twice"),
    ],
)
def test_a_style_that_does_nothing_is_refused(settings: dict[str, str], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        AgentSettings.model_validate(settings)
