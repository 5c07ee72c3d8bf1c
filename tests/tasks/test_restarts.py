"""When the services of a run are started again, and when not."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from nbrl.infra.errors import DamagedError, EngineError, PlaceError, StorageError
from nbrl.tasks.errors import (
    BrokenInvariantError,
    ConfigError,
    LearnerEndedError,
    LearnerUnplacedError,
    NothingLearnedError,
    RolloutError,
    UpdateError,
)
from nbrl.tasks.services import restarts
from nbrl.tasks.services.restarts import Restarts

Attempt = Callable[[Restarts], str]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waits that a test went through, without waiting."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(restarts.asyncio, "sleep", sleep)
    return waited


def run(most: int, *attempts: Exception | str, up: bool = True, reached: int = 0) -> tuple[str, list[str]]:
    """What comes of attempts that end so, one after the other, and what was said. Each finishes `reached` more iterations."""
    said: list[str] = []
    kept, left = Restarts(most, said.append), list(attempts)

    async def work() -> str:
        if up:
            kept.up()
        kept.reached(reached * (len(attempts) - len(left) + 1))
        end = left.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    return asyncio.run(kept.over(work)), said


@pytest.mark.parametrize(
    "error",
    [
        EngineError("engine 0 ended (killed by signal 9)"),
        StorageError("no answer"),
        LearnerEndedError("the learner has ended"),
        RolloutError("every trajectory failed"),
        httpx.ConnectError("refused"),
    ],
)
def test_infrastructure_is_started_again_and_one_line_tells_of_it(error: Exception, waits: list[float]) -> None:
    result, said = run(3, error, "done")
    assert result == "done"
    assert said == [
        f"{error}; all services are started again in 5 s (1 of at most 3 in a row), nothing that was finished is lost"
    ]
    assert waits == [5.0]


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("no such recipe"),
        BrokenInvariantError("other weights"),
        NothingLearnedError("nothing"),
        UpdateError("a trajectory has more tokens than update.max_tokens"),
        DamagedError("damaged"),
        PlaceError("engine 0 cannot be placed"),
        LearnerUnplacedError("no room for its ranks"),
        ValueError("a bug"),
    ],
)
def test_what_new_processes_cannot_cure_is_raised_at_once(error: Exception, waits: list[float]) -> None:
    with pytest.raises(type(error)):
        run(3, error, "done")
    assert waits == []


def test_a_run_gives_up_after_so_many_restarts_in_a_row(waits: list[float]) -> None:
    with pytest.raises(EngineError, match="fourth"):
        run(3, EngineError("first"), EngineError("second"), EngineError("third"), EngineError("fourth"), "done")
    assert waits == [5.0, 20.0, 60.0]


def test_a_finished_iteration_begins_the_count_anew(waits: list[float]) -> None:
    result, _ = run(1, *[EngineError("again")] * 5, "done", reached=1)
    assert (result, waits) == ("done", [5.0] * 5)


def test_services_that_never_served_are_not_started_again() -> None:
    with pytest.raises(EngineError, match="no-such-flag"):
        run(3, EngineError("no-such-flag"), "done", up=False)


def test_without_restarts_the_first_error_ends_the_run() -> None:
    with pytest.raises(EngineError):
        run(0, EngineError("ended"), "done")


def test_an_error_while_services_end_does_not_hide_what_is_final() -> None:
    kept = Restarts(3, lambda text: None)

    async def work() -> None:
        kept.up()
        try:
            raise BrokenInvariantError("other weights")
        finally:
            raise EngineError("the engine does not end")

    with pytest.raises(EngineError):
        asyncio.run(kept.over(work))


def test_of_a_long_message_the_first_line_is_told() -> None:
    _, said = run(1, RolloutError("it failed.\nTraceback"), "done")
    assert said[0].startswith("it failed; all services")
