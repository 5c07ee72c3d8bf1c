"""Templates that want roles to alternate: prompts are theirs of joined turns, and made by appending all the same."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import AutoTokenizer

from nbrl.agent.errors import TokenizerError
from nbrl.agent.messages import Prompt
from nbrl.agent.tokens.alternation import joined
from nbrl.agent.tokens.chat_template import Turns
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status
from tests.agent.context_lab import Asked, act, play
from tests.agent.context_lab import settings as small
from tests.agent.families import ALTERNATING, FAMILIES, make_tokenizer, write_folder

Pair = tuple[ChatTokenizer, Any]
WITH_SYSTEM = (
    "{% for m in messages %}{% if loop.index > 1 and (m.role == 'user') != (loop.index % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NAMES = [*ALTERNATING, "with a system turn"]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    made: dict[str, Pair] = {}
    for name in NAMES:
        template = None if name in ALTERNATING else WITH_SYSTEM
        folder = write_folder(tmp_path_factory.mktemp("model"), ALTERNATING.get(name, FAMILIES["qwen2_5"]), template)
        made[name] = (ChatTokenizer.load(folder), AutoTokenizer.from_pretrained(folder))
    return made


def applied(theirs: Any, turns: Turns, name: str) -> list[int]:
    """What transformers makes of the turns, joined as the template wants them."""
    shown = [{"role": role, "content": text} for role, text in joined(turns, with_system=name not in ALTERNATING)]
    return list(theirs.apply_chat_template(shown, add_generation_prompt=True, return_dict=True)["input_ids"])


TEXT = st.lists(
    st.sampled_from(["\n", " ", "\t", "a", "thin", "k>", "42", "é", "字", ".\n\n", "<", "|im_end|", "✓."]), max_size=9
)
SAID = st.sampled_from(["It is 42.", "x = 1\n\nprint(x)", "字"])


@st.composite
def conversations(draw: st.DrawFn) -> Turns:
    texts = TEXT.map("".join).filter(str.strip)
    turns: Turns = [("system", draw(texts)), ("user", draw(texts))]
    for _ in range(draw(st.integers(0, 3))):
        turns += [("user", draw(texts)) for _ in range(draw(st.integers(0, 2)))]
        turns += [("assistant", draw(SAID)), ("user", draw(texts))]
    return turns


@pytest.mark.parametrize("name", NAMES)
@given(turns=conversations())
def test_a_conversation_is_rendered_as_the_template_does_of_joined_turns(
    loaded: dict[str, Pair], name: str, turns: Turns
) -> None:
    ours, theirs = loaded[name]
    befores = ["system", *(role for role, _ in turns)]
    ids = [token for before, (role, text) in zip(befores, turns, strict=False) for token in ours.message(role, text, before)]  # type: ignore[arg-type]
    assert [*ids, *ours.generation_prompt()] == applied(theirs, turns, name)


def conversation(prompt: Prompt) -> Turns:
    return [(message.role, message.text) for message in prompt.messages]


CELLS = [
    act("print('first', 7 * '\\n', 'é✓.')"),
    "no action at all",
    act("notepad.add_facts(['kept.', '字'])\nprint('x' * 150)"),
    act("context.summarise([0], 'one done.')"),
    act("context.pin(2)\nprint('y' * 150)"),
    act("context.drop(2)\ncontext.recall(0)\nprint('z' * 150)"),
    act("print('end')"),
    act("submit_final_answer('Keldra')"),
]


@pytest.mark.parametrize("trim", ["none", "hard", "soft"])
@pytest.mark.parametrize("name", NAMES)
def test_every_prompt_of_an_episode_is_the_path_to_its_action_and_the_templates(
    loaded: dict[str, Pair], name: str, trim: str
) -> None:
    ours, theirs = loaded[name]
    policy = Asked(CELLS, tokenizer=ours)
    chosen = small(trim=trim, max_steps=len(CELLS), context_tokens=8_000 if trim == "none" else 1_100)
    trajectory = play(policy, chosen)
    assert trajectory.status is Status.ANSWERED
    kinds = {node.kind for node in trajectory.nodes}
    assert "summary" in kinds
    sampled = [index for index, node in enumerate(trajectory.nodes) if node.kind == "sampled"]
    for index, prompt in zip(sampled, policy.prompts, strict=True):
        assert prompt.token_ids == trajectory.path(trajectory.nodes[index].parent)
        assert prompt.token_ids == applied(theirs, conversation(prompt), name)
    if trim == "none":  # the trunk grows: what stood before a tail stands before the next one
        for index, after in zip(sampled, policy.prompts[1:3], strict=False):
            trunk = trajectory.path(trajectory.nodes[trajectory.nodes[index].parent].parent)
            assert after.token_ids[: len(trunk)] == trunk


@pytest.mark.parametrize("name", NAMES)
def test_a_page_cannot_end_a_turn(loaded: dict[str, Pair], name: str) -> None:
    ours, theirs = loaded[name]
    marks = {str(token): number for number, token in theirs.added_tokens_decoder.items()}
    for text in ("".join(marks), "\n\n".join(marks)):
        for before in ("system", "user", "assistant"):
            ids, empty = (ours.message("user", shown, before) for shown in (text, ""))
            assert [one for one in ids if one in marks.values()] == [one for one in empty if one in marks.values()]


def test_a_tokenizer_that_joins_a_texts_end_with_the_empty_line_is_refused(tmp_path: Path) -> None:
    family = ALTERNATING["gemma"]
    folder = write_folder(tmp_path, family)
    tokenizer = make_tokenizer(family.special)
    merged = tokenizer.to_str().replace('"merges":[', '"merges":[[".","Ċ"],').replace('"vocab":{', '"vocab":{".Ċ":999,')
    (folder / "tokenizer.json").write_text(merged)
    with pytest.raises(TokenizerError, match="cannot be tokenised one by one"):
        ChatTokenizer.load(folder)


def test_runs_of_white_space_that_are_added_tokens_are_text(tmp_path: Path) -> None:
    """As in Gemma's tokenizer, whose vocabulary has them besides."""
    folder = write_folder(tmp_path, ALTERNATING["gemma"])
    letters = [chr(number) for number in range(0x2FF) if chr(number).isprintable()]
    vocab = {piece: number for number, piece in enumerate([*letters, "▁", "▁▁", "\t", "\n", "\n\n"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("▁", "▁"), ("\n", "\n")]))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.add_special_tokens([*ALTERNATING["gemma"].special])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ("\n", "\n\n", "▁▁")])
    tokenizer.save(str(folder / "tokenizer.json"))
    ours, theirs = ChatTokenizer.load(folder), AutoTokenizer.from_pretrained(folder)
    turns: Turns = [("system", "s"), ("user", "a  b\n\n\nc\td"), ("user", "\n e")]
    ids = [*ours.message("system", "s"), *ours.message("user", turns[1][1], "system"), *ours.message("user", "\n e", "user")]
    assert [*ids, *ours.generation_prompt()] == applied(theirs, turns, "gemma")
