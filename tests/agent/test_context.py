"""What an agent asks of its context by code, and what it then sees."""

from itertools import pairwise

import pytest

from nbrl.agent.context.context import Context
from nbrl.agent.context.notepad import State
from nbrl.agent.messages import SystemPrompt
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.trajectory import Status
from tests.agent.context_lab import Asked, act, play, settings


def test_a_dropped_cell_leaves_view_and_stays_in_history() -> None:
    policy = Asked([act("print('first')"), act("context.drop(0)"), act("print(history[0].output * 2)"), act("0")])
    steps = play(policy, settings(context_tokens=5000, max_steps=4)).steps
    assert "first" in policy.texts[1]
    assert "first" not in policy.texts[2]
    assert steps[2].observation == "firstfirst"


def test_cells_give_place_to_a_summary_that_answers_to_their_numbers() -> None:
    cells = [act(f"print('out{i}')") for i in range(3)]
    policy = Asked([*cells, act("context.summarise(range(2), 'two done')"), act("context.drop(1)"), act("0")])
    play(policy, settings(context_tokens=5000, max_steps=6))
    assert "<summary>two done</summary>" in policy.texts[4]
    assert "out0" not in policy.texts[4]
    assert policy.texts[4].index("two done") < policy.texts[4].index("out2")
    assert "<summary>" not in policy.texts[5]


def test_a_recalled_cell_comes_back_in_its_place_with_the_ids_it_had() -> None:
    policy = Asked([act("print('aaa')"), act("print('bbb')"), act("context.drop(0)"), act("context.recall(0)"), act("0")])
    play(policy, settings(context_tokens=5000, max_steps=5))
    assert "aaa" not in policy.texts[3]
    before, after = policy.prompts[2].token_ids, policy.prompts[4].token_ids
    shared = policy.texts[2].index("<budget>") - len("<|im_start|>user\n")
    assert policy.texts[4][:shared] == policy.texts[2][:shared]
    assert before[: shared - 200] == after[: shared - 200]


def test_a_cell_can_drop_itself() -> None:
    policy = Asked([act("print('huge')\ncontext.drop(0)"), act("0")])
    play(policy, settings(max_steps=2))
    assert "huge" not in policy.texts[1]


def test_context_lists_what_is_in_view() -> None:
    policy = Asked([act("x = 1"), act("context.pin(0)"), act("context.drop(1)\nprint(context)\nprint(context.cells)"), act("0")])
    steps = play(policy, settings(context_tokens=5000)).steps
    lines = steps[2].observation.split("\n")
    assert lines[0].startswith("cell 0 (pinned), ")
    assert lines[0].endswith(" tokens: x = 1")
    assert lines[2:] == ["this is cell 2", "asked for: drop [1]", "[0, 1]"]


def test_the_size_listed_is_what_dropping_saves() -> None:
    policy = Asked([act("print('x' * 99)"), act("print(context)\ncontext.drop(0)"), act("0")])
    steps = play(policy, settings(context_tokens=5000, max_steps=3)).steps
    listed = int(steps[1].observation.split(" tokens")[0].split(" ")[-1])
    cell = policy.texts[1][policy.texts[1].index("<|im_start|>assistant") : policy.texts[1].rindex("<|im_start|>user")]
    assert listed == len(policy.prompts[1].token_ids) - len(policy.prompts[0].token_ids)
    assert cell.count("<|im_start|>") == 2


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("context.drop(7)", "IndexError: there is no cell 7: this is cell 1"),
        ("context.drop(-1)", "IndexError: there is no cell -1"),
        ("context.drop()", "IndexError: name at least one cell"),
        ("context.pin('0')", "TypeError: a cell is named by its number, not by str"),
        ("context.pin(True)", "TypeError: a cell is named by its number, not by bool"),
        ("context.summarise(0, ' ')", "ValueError: a summary needs text"),
        ("history[5]", "IndexError: there is no cell 5: there are 1 before this one"),
    ],
)
def test_a_request_that_cannot_be_meant_fails_in_its_cell(code: str, told: str) -> None:
    steps = play(Asked([act("0"), act(code), act("0")]), settings(max_steps=3)).steps
    assert told in steps[1].observation


def test_what_the_host_cannot_do_is_told_with_the_output() -> None:
    policy = Asked([act("0"), act("context.drop(0)"), act("context.pin(0, 1)\nprint('seen')"), act("0")])
    play(policy, settings(context_tokens=5000, max_steps=4))
    assert "<output>seen\ncontext.pin was ignored: cell 0 is not in view.</output>" in policy.texts[3]


def test_requests_are_done_once() -> None:
    policy = Asked([act("print('kept')"), act("context.drop(0)"), act("context.recall(0)"), act("1"), act("2")])
    play(policy, settings(context_tokens=5000, max_steps=5))
    assert ["kept" in text.split("<output>", 1)[-1] for text in policy.texts] == [False, True, False, True, True]


def test_pinned_cells_survive_hard_trimming() -> None:
    policy = Asked([act("print('pinned')\ncontext.pin(0)"), act("print('y' * 150)")])
    trajectory = play(policy, settings())
    assert trajectory.status is Status.STEP_LIMIT
    assert all("pinned\n" in text or "pinned</output>" in text for text in policy.texts[1:])
    assert max(len(prompt.token_ids) for prompt in policy.prompts) <= 900 - 150
    assert policy.texts[-1].count("<output>") < 7


def test_pins_that_do_not_fit_give_way_oldest_first() -> None:
    policy = Asked([act(f"print('{letter}' * 150)\ncontext.pin({i})") for i, letter in enumerate("abcdef")])
    trajectory = play(policy, settings(max_steps=6))
    assert trajectory.status is Status.STEP_LIMIT
    assert "a" * 150 not in policy.texts[-1]
    assert "e" * 150 in policy.texts[-1] or "d" * 150 in policy.texts[-1]


@pytest.mark.parametrize("keep_steps", [0, 1, 2])
def test_hard_trimming_keeps_the_last_steps(keep_steps: int) -> None:
    policy = Asked([act(f"print('{i}' * 20)") for i in range(8)])
    play(policy, settings(keep_steps=keep_steps))
    counts = [text.count("<output>") for text in policy.texts]
    trimmed = [after for before, after in pairwise(counts) if after <= before]
    assert trimmed
    assert set(trimmed) == {keep_steps}


def test_a_notepad_larger_than_the_context_is_shown_cut() -> None:
    policy = Asked([act("notepad.write_draft('start' + 'z' * 1900 + 'end')"), act("0")])
    trajectory = play(policy, settings(max_steps=3))
    assert trajectory.status is Status.STEP_LIMIT
    assert "characters cut]" in policy.texts[1]
    assert policy.texts[1].index("start") < policy.texts[1].index("end\n</notepad>")


def test_a_cell_may_name_its_variables_as_it_likes() -> None:
    cells = [
        act("str = list = print = len = isinstance = json = None\nnotepad.add_facts('a')"),
        act("notepad = context = history = 3"),
        act("submit_final_answer(1)"),
    ]
    trajectory = play(Asked(cells), settings())
    assert trajectory.answer == "1"
    assert '"facts":["a"]' in trajectory.steps[2].notepad


def test_pictures_of_the_question_stand_with_it() -> None:
    picture = b"\x89PNG\r\n\x1a\n"
    context = Context(
        EstimatingRenderer(), AgentSettings(context_tokens=2_000, action_tokens=100), SystemPrompt("sys"), "What?", (picture,)
    )
    ask = context.ask(0, 3, State())
    assert ask is not None
    assert [message.images for message in ask.prompt.messages] == [(), (picture,), ()]
