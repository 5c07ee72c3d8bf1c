"""Rendering against the families' own chat templates: by transformers, and by hand from the documented formats."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from nbrl.agent.errors import TokenizerError
from nbrl.agent.messages import Role
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from tests.agent.families import FAMILIES, THINK, write_folder

Turns = list[tuple[Role, str]]
CONTROLS = sorted({token for family in FAMILIES.values() for token in (*family.special, *family.controls)})


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {name: write_folder(folder / name, family) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def ours(models: dict[str, Path]) -> dict[str, ChatTokenizer]:
    return {name: ChatTokenizer.load(path) for name, path in models.items()}


@pytest.fixture(scope="module")
def theirs(models: dict[str, Path]) -> dict[str, Any]:
    return {name: AutoTokenizer.from_pretrained(path) for name, path in models.items()}


def render(tokenizer: ChatTokenizer, turns: Turns) -> list[int]:
    return [token for role, text in turns for token in tokenizer.message(role, text)]


def applied(tokenizer: Any, turns: Turns, **arguments: Any) -> list[int]:
    """What transformers makes of the conversation, the template's date fixed."""
    messages = [{"role": role, "content": text} for role, text in turns]
    arguments = {"add_generation_prompt": True, "date_string": "26 Jul 2024", **arguments}
    return list(tokenizer.apply_chat_template(messages, return_dict=True, **arguments)["input_ids"])


TEXT = st.text(st.characters(codec="utf-8"), max_size=30) | st.lists(
    st.sampled_from(["\n", " ", "\t", "a", "thin", "k>", "42", "é", "字", ".\n\n", "<", "|im_end|"]), max_size=12
).map("".join)
NO_CONTROLS = TEXT.filter(lambda text: not any(token in text for token in CONTROLS))
# Templates look at an assistant's text: they drop thinking and white space. Actions are sampled, so ours are never rendered.
SAID = st.sampled_from(["It is 42.", "x = 1\n\nprint(x)", "字"])


@st.composite
def conversations(draw: st.DrawFn) -> Turns:
    turns: Turns = [("system", draw(NO_CONTROLS)), ("user", draw(NO_CONTROLS.filter(str.strip)))]
    for _ in range(draw(st.integers(0, 3))):
        turns += [("assistant", draw(SAID)), ("user", draw(NO_CONTROLS))]
        if draw(st.booleans()):
            turns.append(("user", draw(NO_CONTROLS)))
    return turns


@pytest.mark.parametrize("name", FAMILIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=conversations())
def test_a_conversation_is_rendered_as_the_template_does(
    ours: dict[str, ChatTokenizer], theirs: dict[str, Any], name: str, turns: Turns
) -> None:
    assert [*render(ours[name], turns), *ours[name].generation_prompt()] == applied(theirs[name], turns)


@pytest.mark.parametrize("name", FAMILIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pieces=st.lists(st.sampled_from([*CONTROLS, "a", "\n", " "]), max_size=8))
def test_no_text_becomes_a_control_token(ours: dict[str, ChatTokenizer], name: str, pieces: list[str]) -> None:
    text, tokenizer = "".join(pieces), ours[name]
    for role in ("system", "user"):
        empty, ids = tokenizer.message(role, ""), tokenizer.message(role, text)
        controls = {tokenizer._tokenizer.token_to_id(token) for token in CONTROLS} - {None}
        assert [token for token in ids if token in controls] == [token for token in empty if token in controls]
    assert text.strip() in tokenizer._tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tag_the_recipe_asks_for_is_the_models_own_token_and_a_tools_is_not(
    ours: dict[str, ChatTokenizer], theirs: dict[str, Any], name: str
) -> None:
    tokenizer = ours[name]
    asked, told = (AgentSettings().render_system_prompt(tools) for tools in ("f()", "f(): <think></think>"))
    ids = tokenizer.message("system", asked.text, tags=asked.tags)
    turns: Turns = [("system", asked.text), ("user", "u")]
    assert [*ids, *render(tokenizer, turns[1:]), *tokenizer.generation_prompt()] == applied(theirs[name], turns)
    thinks = {tokenizer._tokenizer.token_to_id(tag) for tag in THINK} - {None}
    assert [token for token in tokenizer.message("system", told.text, tags=told.tags) if token in thinks] == sorted(thinks)
    assert not thinks & set(tokenizer.message("user", asked.text))


@pytest.mark.parametrize("name", FAMILIES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sampled=st.lists(st.integers(0, 262), max_size=20))
def test_history_keeps_the_sampled_ids_and_closes_them_once(
    ours: dict[str, ChatTokenizer], name: str, sampled: list[int]
) -> None:
    tokenizer = ours[name]
    head = tokenizer.generation_prompt()
    assert tokenizer.history(sampled) == tokenizer.history([*sampled, tokenizer.end_id])
    assert tokenizer.history(sampled)[: len(head) + len(sampled) + 1] == [*head, *sampled, tokenizer.end_id]
    for end in tokenizer.stop_ids:
        assert tokenizer.history([*sampled, end])[len(head) + len(sampled)] == end
        assert tokenizer.decode([*sampled, end]) == tokenizer.decode(sampled)


ACTED = {
    "plain": "It is 42.",
    "thinking": "<think>\nhm\n</think>\n<code>x = 1</code>",
    "padded": " <code>x = 1</code> \n",
}
NOT_APPEND_ONLY = {
    "qwen3": {"thinking"},
    "qwen3_6": {"plain", "thinking", "padded"},
    "llama3": {"padded"},
    "llama3_1": {"padded"},
    "llama3_2": {"padded"},
    "deepseek_r1": {"plain", "thinking", "padded"},
}
"""Actions that a family's template changes when a later turn comes; ours stay as they were sampled."""


@pytest.mark.parametrize("name", FAMILIES)
def test_an_earlier_action_is_rendered_as_the_template_does_or_is_listed(
    ours: dict[str, ChatTokenizer], theirs: dict[str, Any], name: str
) -> None:
    tokenizer, changed = ours[name], set()
    for kind, said in ACTED.items():
        turns: Turns = [("system", "s"), ("user", "u"), ("assistant", said), ("user", "v")]
        acted = tokenizer.history(tokenizer.encode_action(said))
        glued = [*render(tokenizer, turns[:2]), *acted, *render(tokenizer, turns[3:]), *tokenizer.generation_prompt()]
        if glued != applied(theirs[name], turns):
            changed.add(kind)
    assert changed == NOT_APPEND_ONLY.get(name, set())


DATES = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n"
HEADER = "<|start_header_id|>{}<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2_5", "<|im_start|>system\n s\n<|im_end|>\n<|im_start|>user\n\nu<|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3", "<|im_start|>system\n s\n<|im_end|>\n<|im_start|>user\n\nu<|im_end|>\n<|im_start|>assistant\n"),
        ("qwen3_6", "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n<think>\n"),
        ("llama3", f"<|begin_of_text|>{HEADER}s<|eot_id|>{HEADER}u<|eot_id|>{HEADER}"),
        ("llama3_1", f"<|begin_of_text|>{HEADER}{DATES}s<|eot_id|>{HEADER}u<|eot_id|>{HEADER}"),
        ("llama3_2", f"<|begin_of_text|>{HEADER}{DATES}s<|eot_id|>{HEADER}u<|eot_id|>{HEADER}"),
        ("deepseek_r1", "<｜begin▁of▁sentence｜> s\n<｜User｜>\nu<｜Assistant｜><think>\n"),
    ],
)
def test_the_documented_format(ours: dict[str, ChatTokenizer], name: str, expected: str) -> None:
    tokenizer, expected = ours[name], expected.format("system", "user", "assistant")
    ids = [*render(tokenizer, [("system", " s\n"), ("user", "\nu")]), *tokenizer.generation_prompt()]
    assert tokenizer._tokenizer.decode(ids, skip_special_tokens=False) == expected


def test_where_a_template_is_not_append_only_the_sampled_ids_stay(models: dict[str, Path], theirs: dict[str, Any]) -> None:
    """Qwen3 drops earlier thinking; without thinking it opens with an empty block that it leaves out of earlier turns."""
    said = "<think>\nhm\n</think>\n\n42"
    tokenizer = ChatTokenizer.load(models["qwen3"])
    acted = tokenizer.encode_action(said)
    assert tokenizer.history(acted) == [*tokenizer.generation_prompt(), *acted, *tokenizer.message("user", "")[-1:]]
    turns: Turns = [("system", "s"), ("user", "u"), ("assistant", said), ("user", "v")]
    assert "hm" not in theirs["qwen3"].decode(applied(theirs["qwen3"], turns))

    quiet = ChatTokenizer.load(models["qwen3"], AgentSettings(template_arguments={"enable_thinking": False}))
    prompt = [*render(quiet, turns[:2]), *quiet.generation_prompt()]
    assert prompt == applied(theirs["qwen3"], turns[:2], enable_thinking=False)
    assert quiet._tokenizer.decode(quiet.generation_prompt(), skip_special_tokens=False).endswith("<think>\n\n</think>\n\n")
    assert quiet.opened == ""


def test_the_date_a_llama_is_told_is_the_same_on_every_day(models: dict[str, Path]) -> None:
    dated = ChatTokenizer.load(models["llama3_2"], AgentSettings(template_arguments={"date_string": "1 Jan 2030"}))
    assert "Today Date: 1 Jan 2030" in dated.decode(dated.message("system", "s"))


def test_every_end_of_a_turn_stops(ours: dict[str, ChatTokenizer]) -> None:
    for name, family in FAMILIES.items():
        ends = [ours[name]._tokenizer.token_to_id(token) for token in (family.end, *family.also_ends)]
        assert ours[name].end_id == ends[0]
        assert sorted(ours[name].stop_ids) == sorted(ends)


@pytest.mark.parametrize("name", ["qwen3_6", "deepseek_r1"])
def test_thinking_that_the_template_opens_is_part_of_the_action(ours: dict[str, ChatTokenizer], name: str) -> None:
    tokenizer, text = ours[name], "<think>\nhm\n</think>\n<code>print('</think>')</code>"
    ids = tokenizer.encode_action(text)
    assert tokenizer._tokenizer.token_to_id("<think>") not in ids
    assert ids.count(tokenizer._tokenizer.token_to_id("</think>")) == 2
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(tokenizer.encode_action(text.replace("<think>\n", "<think>"))) == text


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("llama3", AgentSettings(thinking="native"), "set agent.thinking to tag"),
        ("deepseek_r1", AgentSettings(think_tag="plan"), "set agent.thinking to native"),
    ],
)
def test_a_way_of_thinking_that_the_model_lacks_is_refused(
    models: dict[str, Path], name: str, settings: AgentSettings, reason: str
) -> None:
    with pytest.raises(TokenizerError, match=reason):
        ChatTokenizer.load(models[name], settings)


LAST_ONLY = (
    "{% for m in messages %}{% if loop.last %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
ONE_ANSWER = "{% if messages | length > 2 %}{{ raise_exception('only one answer') }}{% endif %}"
INSTRUCT = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }} [END]"
    "{% else %}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (LAST_ONLY, "changes earlier turns.*supported are.*Llama 3"),
        (ONE_ANSWER, "only one answer"),
        (INSTRUCT, "no token that ends a turn"),
        ("{% for", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("nothing of the conversation", "changes earlier turns"),
    ],
)
def test_another_family_is_refused_by_name(tmp_path: Path, template: str, reason: str) -> None:
    with pytest.raises(TokenizerError, match=reason):
        ChatTokenizer.load(write_folder(tmp_path, FAMILIES["qwen3"], template))


def test_a_folder_that_is_no_chat_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"tokenizer\.json does not exist"):
        ChatTokenizer.load(tmp_path)
    folder = write_folder(tmp_path, FAMILIES["qwen3"])
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TokenizerError, match="has no chat template"):
        ChatTokenizer.load(folder)
    (folder / "tokenizer.json").write_text("[]")
    with pytest.raises(TokenizerError, match="is not a tokenizer"):
        ChatTokenizer.load(folder)


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
LOOP = "{% for m in messages %}" + TURN + "{% endfor %}"
ASKED = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
MASKED = f"{{% for m in messages %}}{{% generation %}}{TURN}{{% endgeneration %}}{{% endfor %}}{ASKED}"
CLOSED = LOOP + ASKED.replace("{% endif %}", "{% else %}{{ eos_token }}{% endif %}")


@pytest.mark.parametrize("template", [MASKED, "{% set today = strftime_now('%Y') %}" + LOOP + ASKED, CLOSED])
def test_what_trainers_dates_and_ends_of_texts_add_to_a_template_changes_no_turn(tmp_path: Path, template: str) -> None:
    plain, ours = (
        ChatTokenizer.load(write_folder(tmp_path / name, FAMILIES["qwen3"], each))
        for name, each in (("a", LOOP + ASKED), ("b", template))
    )
    for role in ("system", "user", "assistant"):
        assert ours.message(role, "text") == plain.message(role, "text")
    assert ours.generation_prompt() == plain.generation_prompt()


def test_a_template_that_asks_for_the_date_is_told_a_fixed_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"], "{{ strftime_now('%d/%m/%Y') }}" + LOOP + ASKED)
    for arguments, day in (
        ({}, "26/07/2024"),
        ({"date_string": "1 Jan 2030"}, "01/01/2030"),
        ({"date_string": "2031-02-03"}, "03/02/2031"),
    ):
        tokenizer = ChatTokenizer.load(folder, AgentSettings(template_arguments=arguments))
        assert tokenizer.decode(tokenizer.message("system", "s")).startswith(day)
    with pytest.raises(TokenizerError, match="date_string is 'today', which is no date; write it like 26 Jul 2024"):
        ChatTokenizer.load(folder, AgentSettings(template_arguments={"date_string": "today"}))


def test_a_date_that_is_only_printed_may_be_any_text(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"], "{{ date_string }}" + LOOP + ASKED)
    tokenizer = ChatTokenizer.load(folder, AgentSettings(template_arguments={"date_string": "spring"}))
    assert tokenizer.decode(tokenizer.message("system", "s")).startswith("spring")


def test_a_template_finds_all_special_tokens_and_json_as_transformers_writes_it(tmp_path: Path) -> None:
    said = "{{ sep_token }}{{ cls_token }}{{ image_token }}{{ {'é': '<a & b>', 'n': 1} | tojson }}"
    folder = write_folder(tmp_path, FAMILIES["qwen3"], said + LOOP + ASKED)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config |= {"sep_token": "[sep]", "cls_token": "[cls]", "extra_special_tokens": {"image_token": "[image]"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    ours, theirs = ChatTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    shown = theirs.apply_chat_template([{"role": "system", "content": "s"}], tokenize=False)
    assert shown.startswith(begun := '[sep][cls][image]{"é": "<a & b>", "n": 1}')
    assert ours.decode(ours.message("system", "s")).startswith(begun)
