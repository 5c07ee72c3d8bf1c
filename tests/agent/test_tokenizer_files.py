"""Files of tokenizers and chat templates as people have them: read as transformers reads them, or refused in a sentence."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from nbrl.agent.errors import TokenizerError
from nbrl.agent.tokens.rendering import guarded
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.flows.pages.tokens import decoder
from tests.agent.families import FAMILIES, QWEN, Family, write_folder
from tests.agent.test_templates import ASKED, LOOP

STRANGE = {
    "empty": lambda content: "",
    "no fields": lambda content: "{}",
    "a normalizer that panics": lambda content: json.dumps(
        content | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}
    ),
    **{
        kind: lambda content, kind=kind, more=more: json.dumps(  # type: ignore[misc]
            content | {"model": {"type": kind, "vocab": {"a": 0}, "unk_token": "lost"} | more}
        )
        for kind, more in (
            ("WordLevel", {}),
            ("WordPiece", {"continuing_subword_prefix": "#", "max_input_chars_per_word": 9}),
            ("Unigram", {"vocab": [["a", 0.0]], "unk_id": None}),
        )
    },
}


@pytest.mark.parametrize("kind", STRANGE)
@pytest.mark.attack(
    tried="A tokenizer at which its library panics",
    wall="whatever the library raises is one error",
    effect="one sentence; pages show the numbers of tokens",
)
def test_a_tokenizer_that_does_not_work_is_refused_and_its_tokens_are_shown_as_numbers(tmp_path: Path, kind: str) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"])
    file = folder / "tokenizer.json"
    file.write_text(STRANGE[kind](json.loads(file.read_text())))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json ") as caught:
        ChatTokenizer.load(folder)
    assert "\n" not in str(caught.value)
    decode = decoder(str(folder))
    assert decode(2**40) == str(2**40)
    assert decode(-1) == "-1"


@pytest.mark.parametrize("folder", ["\0", "\ud800", "x" * 5000, "/nowhere"])
def test_tokens_of_a_model_that_cannot_be_there_are_numbers(folder: str) -> None:
    assert decoder(folder)(7) == "7"


@pytest.mark.parametrize("name", ["eos_token", "bos_token", "pad_token"])
def test_a_special_token_that_is_no_text_is_refused_or_unknown(tmp_path: Path, name: str) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"])
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: "\ud800"}))
    with suppress(TokenizerError):
        assert ChatTokenizer.load(folder).end_id


def test_an_interrupt_is_no_fault_of_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), guarded(tmp_path):
        raise KeyboardInterrupt


def test_how_a_file_cuts_and_fills_texts_is_left_aside(tmp_path: Path) -> None:
    text = "one two three " * 20
    folder = write_folder(tmp_path, FAMILIES["qwen3"])
    whole = ChatTokenizer.load(folder).encode_action(text)
    file = folder / "tokenizer.json"
    cut = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    fill = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    file.write_text(json.dumps(json.loads(file.read_text()) | {"truncation": cut, "padding": fill}))
    assert ChatTokenizer.load(folder).encode_action(text) == whole


def test_special_tokens_are_found_in_the_file_of_their_own(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"], "{{ bos_token }}" + LOOP + ASKED)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|im_end|>"}}))
    tokenizer = ChatTokenizer.load(folder)
    theirs = AutoTokenizer.from_pretrained(folder).apply_chat_template([{"role": "system", "content": "s"}], return_dict=True)
    assert tokenizer.message("system", "s")[0] == theirs["input_ids"][0] == tokenizer.end_id


def test_a_vocabulary_with_a_gap_needs_rows_up_to_its_largest_id(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, FAMILIES["qwen3"])
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 5000
    file.write_text(json.dumps(content))
    assert ChatTokenizer.load(folder).vocab_size == 5001


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    own = (
        "{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
    )
    folder = write_folder(tmp_path, FAMILIES["qwen2_5"])
    (folder / "chat_template.jinja").write_text(own)
    tokenizer = ChatTokenizer.load(folder)
    assert (
        tokenizer._tokenizer.decode(tokenizer.message("user", "hi"), skip_special_tokens=False) == "<|im_start|>user:hi<|im_end|>"
    )


def test_a_tokenizer_whose_plain_text_forges_a_control_token_is_refused(tmp_path: Path) -> None:
    family = Family("qwen2_5", (*QWEN, "<"), (), "<|im_end|>")
    with pytest.raises(TokenizerError, match="could forge a turn"):
        ChatTokenizer.load(write_folder(tmp_path, family))


@pytest.mark.parametrize(
    "source",
    [
        "{{ 1 // 0 }}",
        "{% for each in range(10**7) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 'a' * 10**13 }}",
        "{% if %}",
        ["x"],
        [{"name": "default"}],
    ],
)
def test_a_broken_template_is_refused_in_a_sentence(tmp_path: Path, source: object) -> None:
    write_folder(tmp_path / "model", next(iter(FAMILIES.values())))
    config = tmp_path / "model/tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": source}))
    with pytest.raises(TokenizerError, match=r"the chat template of .* refuses|has no chat template"):
        ChatTokenizer.load(tmp_path / "model")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "model", next(iter(FAMILIES.values())))
    (tmp_path / "model/chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja cannot be read"):
        ChatTokenizer.load(tmp_path / "model")
    (tmp_path / "model/tokenizer_config.json").write_text("[" * 100_000)
    with pytest.raises(TokenizerError, match=r"tokenizer_config\.json is not JSON"):
        ChatTokenizer.load(tmp_path / "model")
