"""Where demonstrations come from: scripts, files of trajectories, conversations."""

import json
from pathlib import Path

import nbformat
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from nbrl.agent.notebook.write import notebook
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, Trajectory, to_table
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations
from nbrl.tasks.warmstart.sources.gym import GymDemonstrations
from nbrl.tasks.warmstart.sources.recorded import RecordedDemonstrations
from nbrl.tasks.warmstart.sources.sums import SumsDemonstrations
from nbrl.tasks.warmstart.sources.world import WORLDS_FROM, WorldDemonstrations

TINY = Path(__file__).parents[3] / "infra" / "policies" / "tiny"
AGENT = AgentSettings(max_steps=6, context_tokens=2000, action_tokens=200, system_prompt="Act: {form}.")
FENCED = AGENT.model_copy(update={"code_style": "fence", "system_prompt": "Write {form}."})


@pytest.fixture(scope="module")
def stage() -> Stage:
    return Stage(AGENT, ChatTokenizer.load(TINY, AGENT))


@pytest.fixture(scope="module")
def good(stage: Stage) -> list[Trajectory]:
    return WorldDemonstrations(kind="world", count=8, good=1.0).record(stage, 3).trajectories


def _read(trajectory: Trajectory) -> list[tuple[str, str, str, str]]:
    return [(step.think, step.code, step.malformed, step.observation) for step in trajectory.steps]


def test_the_same_seed_gives_the_same_demonstrations(stage: Stage) -> None:
    source = WorldDemonstrations(kind="world", count=12)
    one, same, other = (source.record(stage, seed).trajectories for seed in (1, 1, 2))
    assert [each.nodes for each in one] == [each.nodes for each in same] != [each.nodes for each in other]


def test_actions_are_written_in_the_grammar_in_force(stage: Stage) -> None:
    fenced = Stage(FENCED, stage.tokenizer)
    for trajectory in WorldDemonstrations(kind="world", count=12, good=1.0).record(fenced, 0).trajectories:
        assert not any(step.malformed for step in trajectory.steps)
        assert "```python\n" in fenced.tokenizer.decode(trajectory.sampled()[0].token_ids)


def test_guesses_act_in_the_right_form_and_are_right_by_chance_only(stage: Stage) -> None:
    found = WorldDemonstrations(kind="world", show="guesses", count=400).record(stage, 5).trajectories
    answers = {each.question.id: each.question.answers[0] for each in World.generate(WORLDS_FROM + 5, "train", 400).problems}
    assert {each.status for each in found} == {Status.ANSWERED}
    assert not any(step.malformed or step.cell_status == "error" for each in found for step in each.steps)
    right = sum(each.answer == answers[each.id] for each in found) / len(found)
    assert 0 < right < 0.15
    assert {1, 2, 3} == {len(each.steps) for each in found}


def test_calculations_are_drawn_at_random_from_what_a_question_names(stage: Stage) -> None:
    tasks = ("gcd", "count_bits", "letter_counting")
    found = GymDemonstrations(kind="reasoning_gym", tasks=tasks, count=60).record(stage, 0).trajectories
    assert {each.status for each in found} == {Status.ANSWERED}
    calls = {step.code.split("(")[1] for each in found for step in each.steps}
    assert {"math.gcd", "math.lcm", "sum", "len", "bin"} <= calls


def test_sums_are_done_well_and_badly(stage: Stage) -> None:
    found = SumsDemonstrations(kind="sums", count=30, good=0.5).record(stage, 0).trajectories
    right = [each for each in found if each.answer is not None and each.steps[-1].think == "let python compute it"]
    assert 5 < len(right) < 25


def test_a_table_of_this_agent_is_taken_with_the_ids_that_were_sampled(
    stage: Stage, good: list[Trajectory], tmp_path: Path
) -> None:
    pq.write_table(to_table(good), tmp_path / "good.parquet")
    found = RecordedDemonstrations(kind="recorded", path=tmp_path / "good.parquet").record(stage, 0)
    assert [each.nodes for each in found.trajectories] == [each.nodes for each in good]


@pytest.mark.parametrize("suffix", ["parquet", "ipynb", "json"])
def test_a_recording_is_told_again_in_the_words_of_another_agent(
    stage: Stage, good: list[Trajectory], tmp_path: Path, suffix: str
) -> None:
    for number, each in enumerate(good):
        match suffix:
            case "parquet":
                pq.write_table(to_table([each]), tmp_path / f"{number}.parquet")
            case "ipynb":
                nbformat.write(notebook(each), tmp_path / f"{number}.ipynb")
            case _:
                (tmp_path / f"{number}.json").write_text(each.model_dump_json())
    fenced = Stage(FENCED, stage.tokenizer)
    found = RecordedDemonstrations(kind="recorded", path=tmp_path).record(fenced, 0)
    assert found.left_out == 0
    for told, recorded in zip(found.trajectories, good, strict=True):
        assert (told.answer, _read(told)) == (recorded.answer, _read(recorded))
        prompt = fenced.tokenizer.decode(told.path(told.sampled()[-1].parent))
        assert "Write think inside" in prompt
        assert told.steps[0].observation in prompt or len(told.steps) == 1


def test_what_does_not_fit_the_agent_is_left_out_and_counted(stage: Stage, good: list[Trajectory], tmp_path: Path) -> None:
    pq.write_table(to_table(good), tmp_path / "good.parquet")
    hasty = Stage(AGENT.model_copy(update={"max_steps": 1, "system_prompt": "{form}"}), stage.tokenizer)
    found = RecordedDemonstrations(kind="recorded", path=tmp_path / "good.parquet").record(hasty, 0)
    assert (len(found.trajectories), found.left_out) == (2, 6)  # those that need a single step: arithmetic


def test_a_conversation_has_the_ids_of_the_models_own_template(stage: Stage, tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "You count."},
        {"role": "user", "content": "How many? <|im_end|>"},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "And now?"},
        {"role": "assistant", "content": "Four."},
    ]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": messages, "source": "x"}) + "\n\n")
    (told,) = ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(stage, 0).trajectories
    messages[1]["content"] = "How many? "  # the control token in a text is plain text to us
    reference = AutoTokenizer.from_pretrained(TINY)
    first, second = told.sampled()
    whole = told.path(told.nodes.index(second))
    rendered = reference.apply_chat_template(messages, return_dict=True)["input_ids"]
    marker = stage.tokenizer.message("user", "How many? <|im_end|>")[-8:-2]
    assert [*whole, rendered[-1]][-len(rendered) // 2 :] == rendered[-len(rendered) // 2 :]
    assert stage.tokenizer.end_id not in marker
    assert [stage.tokenizer.decode(node.token_ids) for node in (first, second)] == ["Three.", "Four."]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1 of .* is not JSON"),
        ('{"conversations": []}', "has no messages"),
        ('{"messages": [{"role": "bot", "content": "x"}]}', "without a role of"),
        ('{"messages": [{"role": "user", "content": "x"}]}', "nothing is demonstrated"),
    ],
)
def test_a_line_that_is_no_conversation_is_named(stage: Stage, tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "talk.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=says):
        ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").record(stage, 0)


@pytest.mark.parametrize("name", ["a.parquet", "a.ipynb", "a.json"])
def test_a_file_that_holds_no_trajectories_is_named(stage: Stage, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("nothing")
    with pytest.raises(ConfigError, match="cannot be read"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / name).record(stage, 0)
    with pytest.raises(ConfigError, match="there are no demonstrations"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / f"x{name}").check()


def test_the_tiny_recipes_agent_fits_its_demonstrations() -> None:
    agent = load("tiny-cpu").agent
    found = WorldDemonstrations(kind="world", count=40, good=1.0).record(Stage(agent, ChatTokenizer.load(TINY, agent)), 0)
    assert all(each.status is Status.ANSWERED for each in found.trajectories)
