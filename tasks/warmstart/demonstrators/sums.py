"""Sums of two numbers as reasoning-gym asks for them, with what a demonstrator needs to know of each."""

from nbrl.tasks.environments.kinds.gym import GymEnvironment
from nbrl.tasks.environments.world.world import Problem, Question

TASK = "chain_sum"
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def sums(seed: int, n: int) -> list[Problem]:
    """n different sums; the same arguments give the same ones. Raises ConfigError without the package."""
    if n == 0:
        return []
    settings = {TASK: SUMS}
    environment = GymEnvironment(kind="reasoning_gym", tasks=(TASK,), settings=settings, seed=seed, train=n, held_out=1)
    return [_problem(row) for row in environment.drawn("sums").train.to_pylist()]


def _problem(row: dict[str, str]) -> Problem:
    """The expression stands behind the colon, before an equals sign."""
    expression = row["question"].rpartition(": ")[2].removesuffix(" =").replace(" ", "")
    first = expression[: max(expression.rfind(sign) for sign in "+-")]
    asked = Question(
        id=row["id"], question=row["question"], answers=list(row["answers"]), ability=TASK, source=row["source"], rule="number"
    )
    return Problem(asked, "arithmetic", first, expression=expression)
