"""Scripted demonstrators of the generated world: how each ability is done well, and the bad habits.

Every habit announces itself in its thought, so that a policy which learned them all still chooses between them at the first
tokens of an action, where a reward at the end can sort them out. A demonstration is a trajectory made by `Episode` itself: a
policy trained on its sampled nodes sees, at inference, the very token ids it was trained on.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.policies.scripted import ScriptedPolicy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.world.world import Ability, Problem

# Share of each bad habit among the trajectories that are not good.
HABITS: dict[Ability, dict[str, float]] = {
    "arithmetic": {"guess": 0.45, "stop_early": 0.45, "slip": 0.1},
    "one_hop": {"guess": 0.45, "wrong_lookup": 0.45, "slip": 0.1},
    "two_hop": {"guess": 0.25, "wrong_lookup": 0.25, "stop_early": 0.4, "slip": 0.1},
    "notepad": {"guess": 0.25, "stop_early": 0.25, "forget": 0.4, "slip": 0.1},
}


@dataclass(frozen=True)
class Script:
    """What a demonstrator will do: its habit and the text of each action."""

    habit: str
    actions: list[str]


def action(think: str, code: str) -> str:
    return f"<think>{think}</think><code>{code}</code>"


def _submit(think: str, value: str) -> str:
    return action(think, f"submit_final_answer({value})")


def _search(think: str, query: str, note: str = "") -> str:
    kept = f"notepad.add_facts(['{note}'])\n" if note else ""
    return action(think, f"{kept}search('{query}')")


def _good(problem: Problem) -> list[str]:
    match problem.ability:
        case "arithmetic":
            return [_submit("let python compute it", problem.expression)]
        case "notepad":
            return [
                _search("look it up first", problem.queries[0]),
                _search("note this and find the other", problem.queries[1], note=problem.findings[0]),
                _submit("add the note", problem.expression),
            ]
        case "one_hop" | "two_hop":
            thoughts = ("look it up first", "one more hop to go")
            lookups = [_search(think, query) for think, query in zip(thoughts, problem.queries, strict=False)]
            return [*lookups, _submit("here is the answer", f"'{problem.findings[-1]}'")]


def _guess(problem: Problem) -> list[str]:
    """Answers at once with something the question itself holds: wrong, and cheap to tell from a copied finding."""
    value = problem.subject if problem.ability in ("arithmetic", "notepad") else f"'{problem.subject}'"
    return [_submit("my guess is good", "50" if problem.ability == "notepad" else value)]


def _bad(problem: Problem, habit: str, rng: random.Random) -> list[str]:
    good = _good(problem)
    match habit:
        case "guess":
            return _guess(problem)
        case "stop_early" if problem.ability == "arithmetic":
            half = problem.expression[: max(problem.expression.rfind(sign) for sign in "+-*")]
            return [_submit("part of it will do", half)]
        case "stop_early":
            value = problem.findings[0] if problem.ability == "notepad" else f"'{problem.findings[0]}'"
            return [good[0], _submit("enough, stop here", value)]
        case "wrong_lookup":
            return [
                _search("try something else", problem.wrong_query),
                _submit("here is the answer", f"'{problem.wrong_finding}'"),
            ]
        case "forget":
            return [
                good[0],
                _search("find the other", problem.queries[1]),
                _submit("only this is left", problem.findings[1]),
            ]
        case "slip":
            slips = [action("oh, quick and easy", problem.subject), "<think>no cell for now</think>"]
            if problem.ability != "arithmetic":
                slips[0] = action("oh, quick and easy", f"search({problem.subject})")
            return [rng.choice(slips), *rng.choice([good, _guess(problem)])]
    raise ValueError(f"there is no habit {habit!r}")


def script(problem: Problem, good: float, rng: random.Random) -> Script:
    """A demonstrator for one problem: good with probability `good`, else with one of the ability's bad habits."""
    if rng.random() < good:
        return Script("good", _good(problem))
    habits = HABITS[problem.ability]
    habit = rng.choices(list(habits), weights=list(habits.values()))[0]
    return Script(habit, _bad(problem, habit, rng))


async def play(
    problem: Problem, actions: list[str], search: Tool, tokenizer: ChatTokenizer, settings: AgentSettings
) -> Trajectory:
    """Run one script through the real loop."""
    toolbox = Toolbox([search])
    question = problem.question
    task = Task(question.id, question.id, 0, question.question, question.ability, 0)
    kernel = InlineKernel(prelude([search]), toolbox.call)
    policy = ScriptedPolicy(lambda step: actions[step], tokenizer)
    return await Episode(task, policy, kernel, toolbox, tokenizer, settings).run()


async def record(
    problems: Iterable[Problem], good: float, seed: int, search: Tool, tokenizer: ChatTokenizer, settings: AgentSettings
) -> list[Trajectory]:
    """A demonstration of each problem; the same arguments give the same trajectories but for their times."""
    rng = random.Random(f"demonstrations {seed}")
    return [await play(p, script(p, good, rng).actions, search, tokenizer, settings) for p in problems]
