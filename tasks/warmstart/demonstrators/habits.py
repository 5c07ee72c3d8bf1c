"""Scripted demonstrators of the generated world: how each ability is done well, and the bad habits.

Every habit announces itself in its thought, so that a policy which learned them all still chooses between them at the first
tokens of an action, where a reward at the end can sort them out.
"""

import random
from dataclasses import dataclass

from nbrl.tasks.environments.world.world import NUMBERS, Ability, Problem
from nbrl.tasks.warmstart.demonstrators.play import Move

# Share of each bad habit among the trajectories that are not good.
HABITS: dict[Ability, dict[str, float]] = {
    "arithmetic": {"guess": 0.45, "stop_early": 0.45, "slip": 0.1},
    "one_hop": {"guess": 0.45, "wrong_lookup": 0.45, "slip": 0.1},
    "two_hop": {"guess": 0.25, "wrong_lookup": 0.25, "stop_early": 0.4, "slip": 0.1},
    "notepad": {"guess": 0.25, "stop_early": 0.25, "forget": 0.4, "slip": 0.1},
    "six_step": {"guess": 0.25, "stop_early": 0.25, "forget": 0.4, "slip": 0.1},
}


@dataclass(frozen=True)
class Script:
    """The plan of a demonstrator: its habit, and its moves."""

    habit: str
    moves: list[Move]


def _submit(think: str, value: str) -> Move:
    return Move(think, f"submit_final_answer({value})")


def _search(think: str, query: str, note: str = "") -> Move:
    kept = f"notepad.add_facts(['{note}'])\n" if note else ""
    return Move(think, f"{kept}search('{query}')")


def _good(problem: Problem) -> list[Move]:
    match problem.ability:
        case "arithmetic":
            return [_submit("let python compute it", problem.expression)]
        case "notepad":
            return [
                _search("look it up first", problem.queries[0]),
                _search("note this and find the other", problem.queries[1], note=problem.findings[0]),
                _submit("add the note", problem.expression),
            ]
        case "six_step":
            return [*_five_lookups(problem), _submit("add the notes", problem.expression)]
        case "one_hop" | "two_hop":
            thoughts = ("look it up first", "one more hop to go")
            lookups = [_search(think, query) for think, query in zip(thoughts, problem.queries, strict=False)]
            return [*lookups, _submit("here is the answer", f"'{problem.findings[-1]}'")]


def _five_lookups(problem: Problem) -> list[Move]:
    """Return the moves of five look-ups: each number but the last is noted with the next look-up."""
    thoughts = ("look it up first", "one more hop to go", "note this and find the other", "one more hop to go", "note this too")
    notes = ("", "", problem.findings[1], "", problem.findings[3])
    return [_search(*each) for each in zip(thoughts, problem.queries, notes, strict=True)]


def _guess(problem: Problem) -> list[Move]:
    """Answer at once with something from the question: wrong, and easily distinguished from a copied finding."""
    value = problem.subject if problem.ability in NUMBERS else f"'{problem.subject}'"
    return [_submit("my guess is good", "50" if problem.queries and problem.ability in NUMBERS else value)]


def _bad(problem: Problem, habit: str, rng: random.Random) -> list[Move]:
    good = _good(problem)
    match habit:
        case "guess":
            return _guess(problem)
        case "stop_early" if problem.ability == "arithmetic":
            half = problem.expression[: max(problem.expression.rfind(sign) for sign in "+-*")]
            return [_submit("part of it will do", half)]
        case "stop_early":
            if problem.ability == "six_step":
                return [*good[:2], _submit("enough, stop here", problem.findings[1])]
            value = problem.findings[0] if problem.ability == "notepad" else f"'{problem.findings[0]}'"
            return [good[0], _submit("enough, stop here", value)]
        case "wrong_lookup":
            return [
                _search("try something else", problem.wrong_query),
                _submit("here is the answer", f"'{problem.wrong_finding}'"),
            ]
        case "forget" if problem.ability == "six_step":
            bare = [Move("find the other", move.code.rpartition("\n")[2]) for move in good[2:-1]]
            return [*good[:2], *bare, _submit("only this is left", problem.findings[-1])]
        case "forget":
            return [
                good[0],
                _search("find the other", problem.queries[1]),
                _submit("only this is left", problem.findings[1]),
            ]
        case "slip":
            slips = [Move("oh, quick and easy", problem.subject), Move("no cell for now")]
            if problem.ability != "arithmetic":
                slips[0] = Move("oh, quick and easy", f"search({problem.subject})")
            return [rng.choice(slips), *rng.choice([good, _guess(problem)])]
    raise ValueError(f"there is no habit {habit!r}")


def script(problem: Problem, good: float, rng: random.Random) -> Script:
    """Return a demonstrator for one problem: good with probability `good`, else with one of the ability's bad habits."""
    if rng.random() < good:
        return Script("good", _good(problem))
    habits = HABITS[problem.ability]
    habit = rng.choices(list(habits), weights=list(habits.values()))[0]
    return Script(habit, _bad(problem, habit, rng))
