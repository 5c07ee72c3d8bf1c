"""The generated world: reproducible, its splits apart, its questions answerable by the demonstrated means and by no other."""

import asyncio
import random
from pathlib import Path

import pytest

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.environments.world.world import ABILITIES, Problem, World, all_names, split_of
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.habits import HABITS, script
from nbrl.tasks.warmstart.demonstrators.play import DemonstratedQuestion, DemonstrationAgent, Move, play

TINY_AGENT = load("tiny-cpu").agent
POLICY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"


@pytest.fixture(scope="module")
def tokenizer() -> ChatTokenizer:
    return ChatTokenizer.load(POLICY)


@pytest.fixture(scope="module")
def world() -> World:
    return World.generate(5, "held_out", 120)


@pytest.fixture(scope="module")
def long() -> World:
    return World.generate(6, "held_out", 40, ("six_step",))


@pytest.fixture(scope="module")
def search(world: World) -> SearchTool:
    return SearchTool(Corpus.in_memory(world.corpus))


def _names(world: World) -> set[str]:
    known = {*all_names("train"), *all_names("held_out")}
    words = " ".join([*world.corpus, *(q.question for q in world.questions), *(a for q in world.questions for a in q.answers)])
    return {word for word in words.replace("?", " ").replace(".", " ").split() if word in known}


def test_a_world_is_a_function_of_seed_split_and_size() -> None:
    one, same = World.generate(3, "train", 80), World.generate(3, "train", 80)
    assert (one.questions, one.corpus) == (same.questions, same.corpus)
    assert World.generate(4, "train", 80).corpus != one.corpus


def test_any_four_questions_are_even_over_the_abilities(world: World) -> None:
    assert [q.ability for q in world.questions] == list(ABILITIES) * 30
    assert len({q.id for q in world.questions}) == 120


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_splits_share_no_entity(seed: int) -> None:
    train, held_out = _names(World.generate(seed, "train", 1000)), _names(World.generate(seed, "held_out", 1000))
    assert train
    assert held_out
    assert not train & held_out
    assert {split_of(name) for name in train} == {"train"}
    assert {split_of(name) for name in held_out} == {"held_out"}


def test_no_answer_stands_in_its_question(world: World) -> None:
    for question in world.questions:
        assert question.answers[0] not in question.question.replace("?", "").split()


def test_more_questions_than_names_is_refused() -> None:
    with pytest.raises(ValueError, match="fewer questions"):
        World.generate(0, "held_out", 5_000)


def test_every_query_finds_its_own_fact(world: World, search: SearchTool) -> None:
    for problem in world.problems:
        for query, finding in zip(problem.queries, problem.findings, strict=True):
            assert finding in asyncio.run(search.call({"query": query}))
        if problem.wrong_query:
            found = asyncio.run(search.call({"query": problem.wrong_query}))
            assert problem.wrong_finding in found


def _play(problem: Problem, moves: list[Move], search: SearchTool, tokenizer: ChatTokenizer) -> Trajectory:
    asked = DemonstratedQuestion(problem.question.id, problem.question.question, problem.ability)
    return asyncio.run(play(asked, moves, DemonstrationAgent(TINY_AGENT, tokenizer, (search,))))


def _record(world: World, good: float, seed: int, search: SearchTool, tokenizer: ChatTokenizer) -> list[Trajectory]:
    rng = random.Random(seed)
    return [_play(problem, script(problem, good, rng).moves, search, tokenizer) for problem in world.problems]


def test_every_good_demonstration_answers_exactly_right(world: World, search: SearchTool, tokenizer: ChatTokenizer) -> None:
    trajectories = _record(world, 1.0, 0, search, tokenizer)
    for problem, trajectory in zip(world.problems, trajectories, strict=True):
        assert trajectory.status is Status.ANSWERED
        assert trajectory.answer == problem.question.answers[0]
        assert all(step.cell_status == "ok" and len(step.think) > 10 and len(step.code) > 5 for step in trajectory.steps)


def test_bad_habits_are_wrong_unless_they_recover(world: World, search: SearchTool, tokenizer: ChatTokenizer) -> None:
    rng, seen = random.Random(0), set()
    for problem in world.problems:
        attempt = script(problem, 0.0, rng)
        seen.add((problem.ability, attempt.habit))
        trajectory = _play(problem, attempt.moves, search, tokenizer)
        assert trajectory.status is Status.ANSWERED
        if attempt.habit != "slip":
            assert trajectory.answer != problem.question.answers[0]
    assert seen == {(ability, habit) for ability in ABILITIES for habit in HABITS[ability]}


@pytest.mark.more
def test_six_steps_are_needed_and_enough_and_two_numbers_must_be_kept(long: World, tokenizer: ChatTokenizer) -> None:
    search, rng = SearchTool(Corpus.in_memory(long.corpus)), random.Random(0)
    agent = TINY_AGENT.model_copy(update={"max_steps": 6, "context_tokens": 200})
    for problem in long.problems:
        asked = DemonstratedQuestion(problem.question.id, problem.question.question, problem.ability)
        good = asyncio.run(play(asked, script(problem, 1.0, rng).moves, DemonstrationAgent(agent, tokenizer, (search,))))
        assert (good.answer, len(good.steps)) == (problem.question.answers[0], 6)
        last = tokenizer.decode(_prompts(good)[-1])
        assert all(f"- {problem.findings[number]}\n" in last for number in (1, 3))
        assert f"{problem.findings[0]} keeps" not in last
        attempt = script(problem, 0.0, rng)
        bad = asyncio.run(play(asked, attempt.moves, DemonstrationAgent(agent, tokenizer, (search,))))
        assert attempt.habit == "slip" or bad.answer != problem.question.answers[0]


def test_six_step_questions_change_nothing_of_the_other_worlds() -> None:
    assert World.generate(3, "train", 8, ABILITIES).questions == World.generate(3, "train", 8).questions
    mixed = World.generate(3, "train", 12, (*ABILITIES, "six_step"))
    assert [each.ability for each in mixed.questions][3:6] == ["notepad", "six_step", "arithmetic"]


def test_habits_part_ways_at_the_first_word_of_a_thought(world: World, long: World) -> None:
    """In each ability, the thoughts that can follow the same past begin with different words."""
    rng = random.Random(1)
    for ability in (*ABILITIES, "six_step"):
        problem = next(p for p in (*world.problems, *long.problems) if p.ability == ability)
        after: dict[tuple[str, ...], set[str]] = {}
        for _ in range(200):
            actions = [move.text(TINY_AGENT.grammar) for move in script(problem, 0.3, rng).moves]
            for step, act in enumerate(actions):
                after.setdefault(tuple(actions[:step]), set()).add(act)
        for choices in after.values():
            assert len({choice.split()[0] for choice in choices}) == len(choices)


def _prompts(trajectory: Trajectory) -> list[list[int]]:
    return [trajectory.path(node.parent) for node in trajectory.sampled()]


def test_the_first_finding_is_out_of_view_at_the_third_step_unless_noted(
    world: World, search: SearchTool, tokenizer: ChatTokenizer
) -> None:
    rng = random.Random(2)
    for problem in (p for p in world.problems if p.ability == "notepad"):
        animal = problem.queries[0].split()[0]
        first = f"{problem.subject} keeps {problem.findings[0]} {animal}."
        assert first in world.corpus
        good = _prompts(_play(problem, script(problem, 1.0, rng).moves, search, tokenizer))
        noted = f"notepad.add_facts(['{problem.findings[0]}'])\n"
        moves = [Move(move.think, move.code.replace(noted, "")) for move in script(problem, 1.0, rng).moves]
        bare = _prompts(_play(problem, moves, search, tokenizer))
        assert first in tokenizer.decode(bare[1])
        assert first not in tokenizer.decode(bare[2])
        assert f"<notepad>\n- {problem.findings[0]}\n</notepad>" in tokenizer.decode(good[2])
        if problem.findings[0] != problem.findings[1]:
            assert problem.findings[0] not in tokenizer.decode(bare[2])


@pytest.mark.more
def test_contexts_and_actions_are_short(world: World, search: SearchTool, tokenizer: ChatTokenizer) -> None:
    for trajectory in _record(world, 0.5, 3, search, tokenizer):
        for node in trajectory.nodes:
            assert len(node.token_ids) <= {"system": 25, "task": 20, "sampled": 35, "tail": 24}.get(node.kind, 45)
