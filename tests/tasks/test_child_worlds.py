"""The environments that need children: seeded, done by what they demonstrate, scored by hand, with splits apart."""

from typing import Any

import pytest

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.worlds.errands import Country, Errands
from nbrl.tasks.environments.worlds.letters import FILE, TASK, Letters
from nbrl.tasks.own import Question, ScoredChild
from nbrl.tasks.own import Trajectory as OwnTrajectory
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.own import OwnDemonstrations

PLACE = "nbrl.tasks.environments.worlds"
ALL: dict[str, Any] = {"letters:Letters": Letters(train=4, held_out=3), "errands:Errands": Errands(train=4, held_out=3)}


def played(place: str, good: float, count: int = 4) -> list[Trajectory]:
    agent = load("children-cpu").agent
    corpus = Corpus.in_memory(list(ALL[place].corpus()))
    tools = (SearchTool(corpus),) if place.startswith("errands") else ()
    stage = DemonstrationAgent(agent, ChatTokenizer.load("infra/policies/tiny"), tools)
    source = OwnDemonstrations(kind="own", place=f"{PLACE}.{place}", settings={"train": 4, "held_out": 3}, count=count, good=good)
    return source.record(stage, 0).trajectories


def as_scored(made: Trajectory) -> OwnTrajectory:
    children = [ScoredChild(each.kind, each.task, str(each.status), each.answer) for each in made.children]
    return OwnTrajectory(made.question, made.ability, str(made.status), made.answer, children=children)


@pytest.mark.parametrize("place", ALL)
def test_what_is_demonstrated_is_right_within_the_limits_of_the_recipe(place: str) -> None:
    tasks, questions = ALL[place], list(ALL[place].questions("train"))
    made = played(place, 1.0)
    assert len(made) == 4
    for question, each in zip(questions, made, strict=True):
        scored = as_scored(each)
        assert tasks.score(scored, question.reference).success
        assert [tasks.score_child(child, scored, question.reference) for child in scored.children] == [1.0] * len(each.children)
    assert {len(each.children) for each in made} == {40 if place.startswith("letters") else 3}


@pytest.mark.parametrize("place", ALL)
def test_other_demonstrations_are_mostly_wrong(place: str) -> None:
    questions = list(ALL[place].questions("train"))
    made = played(place, 0.0, 16)
    right = [ALL[place].score(as_scored(each), questions[int(each.id.partition("-")[2]) % 4].reference).success for each in made]
    assert sum(right) <= len(made) // 2 + 3


@pytest.mark.parametrize("tasks", ALL.values(), ids=ALL)
def test_the_same_seed_gives_the_same_questions_and_another_one_others(tasks: Any) -> None:
    again, other = type(tasks)(train=4, held_out=3), type(tasks)(seed=7, train=4, held_out=3)
    first = list(tasks.questions("train"))
    assert list(again.questions("train")) == first
    assert all(one != two for one, two in zip(other.questions("train"), first, strict=True))


def test_no_letter_comes_twice_in_a_file_and_no_name_in_two_splits() -> None:
    (question,) = Letters(train=1, letters=300).questions("train")
    name, data = question.files[0][0], bytes(question.files[0][1])
    letters = data.decode().split("\n")
    assert (name, len(letters), len({*letters})) == (FILE, 300, 300)
    assert sorted([*question.reference["complaints"], *question.reference["others"]]) == sorted(letters)
    names = [{*Country(0, split).towns} for split in ("train", "held_out")]
    assert not names[0] & names[1]


def test_a_near_count_earns_a_part_and_what_is_no_number_nothing() -> None:
    tasks, reference = Letters(), {"complaints": ["a"] * 10, "others": ["b"]}
    worth = [tasks.score(OwnTrajectory("", "", "", answer), reference).value for answer in ("10", " 10 ", "8", "30", "ten", None)]
    assert worth == [1.0, 1.0, 0.375, 0.0, 0.0, 0.0]
    said = [
        ScoredChild("llm", f"{TASK}{letter}", "", answer)
        for letter, answer in (("a", "Yes"), ("b", "yes"), ("c", "no"), ("b", None))
    ]
    assert [tasks.score_child(each, OwnTrajectory("", "", "", None), reference) for each in said] == [1.0, 0.0, 0.0, 0.0]


def test_errands_earn_a_third_for_each_answer_at_its_place() -> None:
    (question,) = Errands(train=1).questions("train")
    answers = [each["answer"] for each in question.reference]
    worth = [
        Errands().score(OwnTrajectory("", "", "", ", ".join(said)), question.reference) for said in (answers, answers[:2], ["x"])
    ]
    assert [(each.success, each.value) for each in worth] == [(True, 1.0), (False, pytest.approx(2 / 3)), (False, 0.0)]
    assert isinstance(question, Question)
