"""How often something that ends may be started again."""

import time
from collections import deque
from collections.abc import Callable


class Budget:
    """At most `most` restarts in any `window_s` seconds: a fault that comes back at once must not be cured forever."""

    def __init__(self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.window_s, self._clock = most, window_s, clock
        self._spent: deque[float] = deque()

    def spend(self, count: int = 1) -> bool:
        """Take `count` restarts that happen now; False if there were too many of them, these included."""
        now = self._clock()
        while self._spent and self._spent[0] <= now - self.window_s:
            self._spent.popleft()
        self._spent.extend([now] * count)
        return len(self._spent) <= self.most

    def __str__(self) -> str:
        return f"{self.most} restarts in {self.window_s / 60:g} minutes"
