"""Where demonstrations come from: scripts and files of trajectories."""

import asyncio
from pathlib import Path

import nbformat
import pyarrow.parquet as pq
import pytest

from nbrl.agent.grammar import Action
from nbrl.agent.notebook.write import notebook
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, Step, Trajectory, to_table
from nbrl.tasks.environments.world.world import World
from nbrl.tasks.errors import ConfigError, StoppedError
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations
from nbrl.tasks.warmstart.sources.gym import GymDemonstrations, SumsDemonstrations
from nbrl.tasks.warmstart.sources.recorded import RecordedDemonstrations, retold
from nbrl.tasks.warmstart.sources.source import Demonstrations
from nbrl.tasks.warmstart.sources.world import WORLDS_FROM, WorldDemonstrations
from tests.tasks.warmstart.conftest import AGENT, TINY

FENCED = AGENT.model_copy(update={"code_style": "fence", "system_prompt": "Write {form}."})


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


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_of_demonstrations_is_named_before_work_begins(tmp_path: Path, content: str) -> None:
    (tmp_path / "talk.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=r"talk\.jsonl has no rows"):
        ChatDemonstrations(kind="chat", path=tmp_path / "talk.jsonl").check()
    pq.write_table(to_table([]), tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"none\.parquet holds no trajectory"):
        RecordedDemonstrations(kind="recorded", path=tmp_path / "none.parquet").check()


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
