"""Where demonstrations come from: scripts, files of trajectories, conversations."""

import asyncio
import json
from pathlib import Path
from typing import Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from nbrl.agent.grammar import Action
from nbrl.agent.notebook.write import notebook
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, Step, Trajectory, to_table
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError, StoppedError
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations, holds_conversations
from nbrl.tasks.warmstart.sources.gym import GymDemonstrations, SumsDemonstrations
from nbrl.tasks.warmstart.sources.recorded import RecordedDemonstrations, retold
from nbrl.tasks.warmstart.sources.source import Demonstrations
from nbrl.tasks.warmstart.sources.turns import UnfitError, turns_of
from nbrl.tasks.warmstart.sources.world import WORLDS_FROM, WorldDemonstrations

TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
AGENT = AgentSettings(max_steps=6, context_tokens=2000, action_tokens=200, system_prompt="Act: {form}.")
FENCED = AGENT.model_copy(update={"code_style": "fence", "system_prompt": "Write {form}."})


@pytest.fixture(scope="module")
def stage() -> DemonstrationAgent:
    return DemonstrationAgent(AGENT, ChatTokenizer.load(TINY, AGENT))


@pytest.fixture(scope="module")
def good(stage: DemonstrationAgent) -> list[Trajectory]:
    return WorldDemonstrations(kind="world", count=8, good=1.0).record(stage, 3).trajectories


def _read(trajectory: Trajectory) -> list[tuple[str, str, str, str]]:
    return [(step.think, step.code, step.malformed, step.observation) for step in trajectory.steps]


def test_the_same_seed_gives_the_same_demonstrations(stage: DemonstrationAgent) -> None:
    source = WorldDemonstrations(kind="world", count=12)
    one, same, other = (source.record(stage, seed).trajectories for seed in (1, 1, 2))
    assert [each.nodes for each in one] == [each.nodes for each in same] != [each.nodes for each in other]


def test_actions_are_written_in_the_grammar_in_force(stage: DemonstrationAgent) -> None:
    fenced = DemonstrationAgent(FENCED, stage.tokenizer)
    for trajectory in WorldDemonstrations(kind="world", count=12, good=1.0).record(fenced, 0).trajectories:
        assert not any(step.malformed for step in trajectory.steps)
        assert "```python\n" in fenced.tokenizer.decode(trajectory.sampled()[0].token_ids)


@pytest.mark.more
def test_guesses_act_in_the_right_form_and_are_right_by_chance_only(stage: DemonstrationAgent) -> None:
    found = WorldDemonstrations(kind="world", show="guesses", count=400).record(stage, 5).trajectories
    answers = {each.question.id: each.question.answers[0] for each in World.generate(WORLDS_FROM + 5, "train", 400).problems}
    assert {each.status for each in found} == {Status.ANSWERED}
    assert not any(step.malformed or step.cell_status == "error" for each in found for step in each.steps)
    right = sum(each.answer == answers[each.id] for each in found) / len(found)
    assert 0 < right < 0.15
    assert {1, 2, 3} == {len(each.steps) for each in found}


def test_calculations_are_drawn_at_random_from_what_a_question_names(stage: DemonstrationAgent) -> None:
    tasks = ("gcd", "count_bits", "letter_counting")
    found = GymDemonstrations(kind="reasoning_gym", tasks=tasks, count=60).record(stage, 0).trajectories
    assert {each.status for each in found} == {Status.ANSWERED}
    calls = {step.code.split("(")[1] for each in found for step in each.steps}
    assert {"math.gcd", "math.lcm", "sum", "len", "bin"} <= calls


def test_sums_are_done_well_and_badly(stage: DemonstrationAgent) -> None:
    found = SumsDemonstrations(kind="sums", count=30, good=0.5).record(stage, 0).trajectories
    right = [each for each in found if each.answer is not None and each.steps[-1].think == "let python compute it"]
    assert 5 < len(right) < 25


def _told(recorded: list[Trajectory], stage: DemonstrationAgent, sampled_as: AgentSettings | None = None) -> Demonstrations:
    return asyncio.run(retold(recorded, stage, sampled_as))


def test_what_a_run_sampled_keeps_its_ids_where_the_agent_is_the_same(stage: DemonstrationAgent, good: list[Trajectory]) -> None:
    # The tool is a part of what the agent is told.
    assert [each.nodes for each in _told(good, stage, AGENT).trajectories] == [each.nodes for each in good]
    silent = {"system_prompt": "Act."}
    for other in ({"code_style": "fence"}, {"think_tag": "plan"}, {"max_steps": 20}, {"context_tokens": 900}):
        before = DemonstrationAgent(AGENT.model_copy(update=silent), stage.tokenizer)
        sampled = WorldDemonstrations(kind="world", count=8, good=1.0).record(before, 3).trajectories
        now = DemonstrationAgent(AGENT.model_copy(update=silent | other), stage.tokenizer)
        told = _told(sampled, now, before.agent).trajectories
        assert len(told) == 8
        assert [each.nodes for each in told] == [each.nodes for each in _told(sampled, now).trajectories]
        assert not any(step.malformed for each in told for step in each.steps)
        assert all(
            now.agent.grammar.parse(now.tokenizer.decode(node.token_ids)) == Action(step.think, step.code)
            for each in told
            for node, step in zip(each.sampled(), each.steps, strict=True)
        )


@pytest.mark.parametrize("limits", [{"context_tokens": 150, "action_tokens": 100}, {"action_tokens": 8}, {"max_steps": 1}])
@pytest.mark.parametrize("sampled_as", [AGENT, None])
def test_what_is_beyond_the_agents_limits_is_left_out(
    stage: DemonstrationAgent, good: list[Trajectory], limits: dict[str, int], sampled_as: AgentSettings | None
) -> None:
    tight = DemonstrationAgent(AGENT.model_copy(update=limits), stage.tokenizer)
    found = _told(good, tight, sampled_as)
    assert found.left_out > 0
    assert all(
        len(each.path(place)) <= tight.agent.context_tokens
        for each in found.trajectories
        for place, node in enumerate(each.nodes)
        if node.kind == "sampled"
    )
    assert all(len(node.token_ids) <= tight.agent.action_tokens for each in found.trajectories for node in each.sampled())


def test_ids_in_a_file_are_not_trusted(stage: DemonstrationAgent, good: list[Trajectory], tmp_path: Path) -> None:
    forged = good[1].model_copy(deep=True)
    forged.sampled()[0].token_ids[:] = [stage.tokenizer.end_id] * 5
    forged.sampled()[0].logprobs[:] = [0.0] * 5
    pq.write_table(to_table([forged]), tmp_path / "forged.parquet")
    (told,) = RecordedDemonstrations(kind="recorded", path=tmp_path / "forged.parquet").record(stage, 0).trajectories
    assert [node.token_ids for node in told.sampled()] == [node.token_ids for node in good[1].sampled()]


@pytest.mark.parametrize(
    "code",
    ["context.drop(0)", "c = context; c.drop(0)", "globals()['context'].drop(0)", "from x import y; y.context.drop(", "context"],
)
def test_what_never_happened_is_not_told(stage: DemonstrationAgent, good: list[Trajectory], code: str) -> None:
    changing, failed, odd, malformed = (good[1].model_copy(deep=True) for _ in range(4))
    changing.steps[0].code = code
    failed.status = Status.FAILED
    odd.steps[0].notepad = "not json"
    malformed.steps.insert(0, Step(think="```python\n1\n```", malformed="there is no <code> block"))
    fenced = DemonstrationAgent(FENCED, stage.tokenizer)
    assert _told([changing, failed, odd, malformed, good[1]], fenced).left_out == 4


def test_a_summary_that_was_not_recorded_is_not_learnt(stage: DemonstrationAgent) -> None:
    long = WorldDemonstrations(kind="world", abilities=("six_step",), count=4, good=1.0)
    agent = AGENT.model_copy(update={"max_steps": 7})
    recorded = long.record(DemonstrationAgent(agent, stage.tokenizer), 1).trajectories
    needed = max(len(each.path(place)) for each in recorded for place, node in enumerate(each.nodes) if node.kind == "sampled")
    soft = agent.model_copy(update={"trim": "soft", "context_tokens": needed - 20, "summary_tokens": 40})
    assert len(_told(recorded, DemonstrationAgent(agent, stage.tokenizer)).trajectories) == 4
    assert _told(recorded, DemonstrationAgent(soft, stage.tokenizer)) == Demonstrations([], left_out=4)


def test_scripts_that_a_limit_cuts_off_are_no_demonstrations(stage: DemonstrationAgent) -> None:
    source = WorldDemonstrations(kind="world", count=20, good=1.0)
    for limits in ({"action_tokens": 12}, {"action_tokens": 20}, {"max_steps": 2}):
        found = source.record(DemonstrationAgent(AGENT.model_copy(update=limits), stage.tokenizer), 0)
        assert found.left_out > 0
        assert all(each.status is Status.ANSWERED for each in found.trajectories)
        assert not any(step.malformed for each in found.trajectories for step in each.steps)
    tight = DemonstrationAgent(AGENT.model_copy(update={"action_tokens": 20}), stage.tokenizer)
    guesses = WorldDemonstrations(kind="world", count=40, show="guesses").record(tight, 0)
    assert guesses.left_out > 0
    assert all(len(node.token_ids) <= 20 for each in guesses.trajectories for node in each.sampled())


def test_numbers_with_leading_zeros_are_calculated_with(stage: DemonstrationAgent) -> None:
    found = GymDemonstrations(kind="reasoning_gym", tasks=("binary_alternation",), count=8).record(stage, 0)
    assert (len(found.trajectories), found.left_out) == (8, 0)


def test_links_in_a_folder_of_trajectories_are_not_followed(
    stage: DemonstrationAgent, good: list[Trajectory], tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    pq.write_table(to_table(good), tmp_path / "good.parquet")
    (tmp_path / "folder/link.parquet").symlink_to(tmp_path / "good.parquet")
    with pytest.raises(ConfigError, match="has no files of trajectories"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / "folder").check()


def test_a_recording_that_is_cancelled_ends_at_its_next_demonstration(stage: DemonstrationAgent) -> None:
    stopped = DemonstrationAgent(AGENT, stage.tokenizer)
    stopped.cancelled.set()
    with pytest.raises(StoppedError):
        WorldDemonstrations(kind="world", count=100_000).record(stopped, 0)


@pytest.mark.parametrize("suffix", ["parquet", "ipynb", "json"])
def test_a_recording_is_told_again_in_the_words_of_another_agent(
    stage: DemonstrationAgent, good: list[Trajectory], tmp_path: Path, suffix: str
) -> None:
    for number, each in enumerate(good):
        match suffix:
            case "parquet":
                pq.write_table(to_table([each]), tmp_path / f"{number}.parquet")
            case "ipynb":
                nbformat.write(notebook(each), tmp_path / f"{number}.ipynb")
            case _:
                (tmp_path / f"{number}.json").write_text(each.model_dump_json())
    fenced = DemonstrationAgent(FENCED, stage.tokenizer)
    found = RecordedDemonstrations(kind="recorded", path=tmp_path).record(fenced, 0)
    assert found.left_out == 0
    for told, recorded in zip(found.trajectories, good, strict=True):
        assert (told.answer, _read(told)) == (recorded.answer, _read(recorded))
        prompt = fenced.tokenizer.decode(told.path(told.sampled()[-1].parent))
        assert "Write think inside" in prompt
        assert told.steps[0].observation in prompt or len(told.steps) == 1


def test_what_does_not_fit_the_agent_is_left_out_and_counted(
    stage: DemonstrationAgent, good: list[Trajectory], tmp_path: Path
) -> None:
    pq.write_table(to_table(good), tmp_path / "good.parquet")
    hasty = DemonstrationAgent(AGENT.model_copy(update={"max_steps": 1, "system_prompt": "{form}"}), stage.tokenizer)
    found = RecordedDemonstrations(kind="recorded", path=tmp_path / "good.parquet").record(hasty, 0)
    assert (len(found.trajectories), found.left_out) == (2, 6)  # those that need a single step: arithmetic


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


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_of_demonstrations_is_named_before_work_begins(tmp_path: Path, content: str) -> None:
    (tmp_path / "talk.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"talk\.jsonl has no rows"):
        ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").check()
    pq.write_table(to_table([]), tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"none\.parquet holds no trajectory"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / "none.parquet").check()


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


@pytest.mark.parametrize("name", ["a.parquet", "a.ipynb", "a.json"])
def test_a_file_that_holds_no_trajectories_is_named(stage: DemonstrationAgent, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / name).record(stage, 0)
    with pytest.raises(ConfigError, match="there are no demonstrations"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / f"x{name}").check()


@pytest.mark.more
def test_the_tiny_recipes_agent_fits_its_demonstrations() -> None:
    agent = load("tiny-cpu").agent
    found = WorldDemonstrations(kind="world", count=40, good=1.0).record(
        DemonstrationAgent(agent, ChatTokenizer.load(TINY, agent)), 0
    )
    assert all(each.status is Status.ANSWERED for each in found.trajectories)
