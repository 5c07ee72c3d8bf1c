"""Decides how often and after which wait a failed request is retried."""

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)}) - {501, 505}
FIRST_WAIT_S = 0.5


def retry_after(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds that a Retry-After header requests, as a number or a date; None without a valid one."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):  # a year may have any number of digits
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (date - (now or datetime.now(UTC))).total_seconds())


class Retry:
    """A budget of `retries` further tries. Waits double from half a second, each by a random part less, up to `longest_s`."""

    def __init__(self, retries: int, longest_s: float, chance: Callable[[], float]) -> None:
        self._left, self._longest, self._chance = retries, longest_s, chance
        self.tries = 1

    def next_wait(self, wanted: float | None) -> float | None:
        """Seconds before the next try, `wanted` if the server requests it; None if the budget is used up or the wait too long."""
        if self._left <= 0 or (wanted is not None and not wanted <= self._longest):
            return None
        wait = min(self._longest, FIRST_WAIT_S * 2 ** (self.tries - 1)) * (1 - self._chance() / 2) if wanted is None else wanted
        self._left -= 1
        self.tries += 1
        return wait
