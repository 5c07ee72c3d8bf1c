"""Demonstrations from conversations, in the forms that people have."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations, holds_conversations
from nbrl.tasks.warmstart.sources.turns import UnfitError, turns_of
from tests.tasks.warmstart.conftest import AGENT, TINY


def test_a_conversation_without_a_system_turn_gets_the_agents(stage: DemonstrationAgent, tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a<|im_end|>\n<|im_start|>user\nb"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk}))
    (told,) = ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(stage, 0).trajectories
    assert told.nodes[0].token_ids == stage.tokenizer.message("system", AGENT.render_system_prompt("").text)
    assert told.sampled()[0].token_ids.count(stage.tokenizer.end_id) == 1


def test_a_conversation_that_the_agent_could_not_have_is_left_out(stage: DemonstrationAgent, tmp_path: Path) -> None:
    def line(*actions: str) -> str:
        turns = [{"role": role, "content": text} for action in actions for role, text in (("user", "Hi"), ("assistant", action))]
        return json.dumps({"messages": turns})

    hasty = DemonstrationAgent(
        AGENT.model_copy(update={"max_steps": 2, "action_tokens": 20, "system_prompt": "Act."}), stage.tokenizer
    )
    lines = [line("a"), line("a", "b"), line("a", "b", "c"), line("word " * 30)]
    (tmp_path / "talk.jsonl").write_text("\ufeff" + "\n".join(lines), encoding="utf-8")
    found = ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(hasty, 0)
    assert ([len(each.sampled()) for each in found.trajectories], found.left_out) == ([1, 2], 2)


def learnt(stage: DemonstrationAgent, path: Path, *rows: dict[str, Any]) -> tuple[list[list[str]], int]:
    """What is learnt of each conversation, and how many rows are left out."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text(json.dumps(rows) if path.suffix == ".json" else "".join(f"{json.dumps(row)}\n" for row in rows))
    assert holds_conversations(path)
    found = ChatDemonstrations(kind="chat", path=path).record(stage, 0)
    return [[stage.tokenizer.decode(node.token_ids) for node in each.sampled()] for each in found.trajectories], found.left_out


HI = {"role": "user", "content": "Hi"}
HELLO = {"role": "assistant", "content": "Hello"}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_row_that_is_no_conversation_is_left_out_and_counted(stage: DemonstrationAgent, tmp_path: Path, suffix: str) -> None:
    rows = [{"messages": [HI, HELLO]}, {"messages": [HI]}, {"messages": [HI, HELLO, HI]}]
    assert learnt(stage, tmp_path / f"talk{suffix}", *rows) == ([["Hello"], ["Hello"]], 1)


def test_conversations_are_read_in_the_forms_that_people_have(stage: DemonstrationAgent, tmp_path: Path) -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "w", "arguments": "{}"}}]}
    rows = [
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, HELLO]},
        {"messages": [{"role": "developer", "content": "Be brief."}, HI, HELLO]},
        {"messages": [HI, call, {"role": "tool", "tool_call_id": "1", "content": "sun"}, HELLO]},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"messages": [HI, {**HELLO, "annotations": [], "audio": None}]},
    ]
    assert learnt(stage, tmp_path / "talk.jsonl", *rows) == ([["Hello"]] * 5, 0)


def test_a_row_of_sharegpt_has_its_system_turn_beside_it_and_its_calls_are_not_learnt(
    stage: DemonstrationAgent, tmp_path: Path
) -> None:
    turns = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": '{"name": "w"}'},
        {"from": "observation", "value": "sun"},
        {"from": "gpt", "value": "Hello"},
    ]
    row = {"system": "Be brief.", "conversations": turns}
    assert [(turn.role, turn.text, turn.learnt) for turn in turns_of(row)] == [
        ("system", "Be brief.", True),
        ("user", "Hi", True),
        ("assistant", '{"name": "w"}', False),
        ("user", "sun", True),
        ("assistant", "Hello", True),
    ]
    assert learnt(stage, tmp_path / "talk.jsonl", row, {**row, "images": ["a.png"]}) == ([["Hello"]], 1)


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": False}])
def test_a_turn_that_is_marked_is_not_learnt_and_a_thought_is(
    stage: DemonstrationAgent, tmp_path: Path, mark: dict[str, Any]
) -> None:
    rows = [{"messages": [HI, HELLO | mark, HI, {"role": "assistant", "content": "4", "reasoning_content": "two and two"}]}]
    (said,), left_out = learnt(stage, tmp_path / "talk.jsonl", *rows)
    assert (len(said), left_out) == (1, 0)
    assert "Hello" not in said[0]
    assert said[0].index("two and two") < said[0].index("4")


@pytest.mark.parametrize("thought", ["\ud800", 7, [{"type": "thinking", "thinking": "hm"}]])
def test_a_thought_that_is_no_text_or_stands_there_twice_makes_a_row_unfit(
    stage: DemonstrationAgent, tmp_path: Path, thought: Any
) -> None:
    said = {"role": "assistant", "content": "4"}
    twice, other = said | {"reasoning": "two", "thinking": "three"}, said | {"reasoning": thought}
    once = said | {"reasoning": "two and two", "thinking": "two and two"}
    rows = [{"messages": [HI, each]} for each in (once, twice, other)]
    (told,), left_out = learnt(stage, tmp_path / "talk.jsonl", *rows)
    assert left_out == 2
    assert told[0].count("two and two") == 1


TALK = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
THOUGHT = {"role": "assistant", "content": "<think>hm</think>\n4", "reasoning_content": "hm"}


def test_what_a_row_says_twice_is_said_once() -> None:
    (_, said) = turns_of({"messages": [TALK["messages"][0], THOUGHT]})
    assert (said.text, said.thought) == ("4", "hm")
    row = {"system": "Be brief.", "messages": [{"role": "system", "content": "Be brief."}, *TALK["messages"]]}
    assert [turn.text for turn in turns_of(row)] == ["Be brief.", "Hi", "Hello"]
    assert turns_of({"messages": json.dumps(TALK["messages"])}) == turns_of(TALK)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        *(({**TALK, **mark}, "is not to be learnt") for mark in ({"weight": 0}, {"train": False}, {"loss": 0.0})),
        ({"messages": [TALK["messages"][0], THOUGHT | {"reasoning_content": "well"}]}, "two thoughts"),
        ({"system": "Be long.", "messages": [{"role": "system", "content": "Be brief."}, *TALK["messages"]]}, "another text"),
        ({"messages": "[{"}, "has no messages"),
        ({"messages": "Hi"}, "has no messages"),
    ],
)
def test_a_row_that_contradicts_itself_or_is_not_to_be_learnt_is_unfit(row: dict[str, Any], says: str) -> None:
    with pytest.raises(UnfitError, match=says):
        turns_of(row)


def test_a_conversation_has_the_ids_of_the_models_own_template(stage: DemonstrationAgent, tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You count."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Four."},
    ]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": messages, "source": "x"}) + "\n\n")
    (told,) = ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(stage, 0).trajectories
    rendered = AutoTokenizer.from_pretrained(TINY).apply_chat_template(messages, return_dict=True)["input_ids"]
    first, second = told.sampled()
    assert [*told.path(told.nodes.index(second)), rendered[-1]] == rendered  # what follows the last turn's end is a line break
    whole = told.path(told.nodes.index(first))
    assert whole == rendered[: len(whole)]
    assert [stage.tokenizer.decode(node.token_ids) for node in (first, second)] == ["Three.", "Four."]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "talk.jsonl cannot be read: line 1, character 2"),
        ('{"conversations": []}', "row 1 of .* has no messages"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "has a message of the role 'bot'; the roles are system, "),
        ('{"messages": [{"role": "user", "content": "x"}]}', "nothing is demonstrated"),
        ('{"messages": [{"role": "user", "content": "\\ud800"}]}', "whose content is not text alone: "),
        ("[" * 100_000, "line 1: maximum recursion"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "answers no user"),
        ('{"messages": [{"role": "system", "content": "x"}, {"role": "assistant", "content": "y"}]}', "answers no user"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]}', "empty turn"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "system", "content": "y"}]}', "put it first"),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0}]}', "nothing is"),
        (
            '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "weight": 0.5}]}',
            "neither 0 nor 1",
        ),
        ('{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "prefix": 1}]}', "with 'prefix'"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(stage: DemonstrationAgent, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "talk.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=says):
        ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(stage, 0)
