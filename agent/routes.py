"""The experts that an engine chose for the tokens of an episode, from its replies to the tree of the trajectory.

A route is the experts of one token in all layers of a mixture of experts, layer after layer, as numbers of 16 bits. The engine
does not forward the last token that it samples, so its route is unknown unless a later request continues it.
"""

import base64
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from nbrl.agent.trajectory import ROOT, SAMPLED, Trajectory

UNKNOWN = 0xFFFF


class _Reply(NamedTuple):
    """The tokens of a request and its reply, and the routes of those from `start` on; those before are `before`'s."""

    token_ids: bytes  # 8 for each
    start: int
    before: "_Reply | None"
    routes: bytes

    @property
    def known(self) -> int:
        """Return how many of its first tokens have routes: all but the last."""
        return len(self.token_ids) // 8 - 1


class RouteLog:
    """Keeps the routes of all requests of an episode. What a request shares with an earlier one is asked for once."""

    def __init__(self) -> None:
        self._replies: list[_Reply] = []
        self._width = 0  # bytes of one route

    def start(self, prompt_ids: Sequence[int]) -> int:
        """Return from which token of a prompt on routes are to be asked for."""
        return self._shared(array("q", prompt_ids).tobytes())[1]

    def keep(self, token_ids: Sequence[int], start: int, experts: str) -> None:
        """Keep the routes of a request from its token number `start` on, which is what `start` gave for its prompt.

        `token_ids` are those of the prompt and then the sampled ones, `experts` numbers of 32 bits in base64, for all tokens but
        the last. Raises ValueError if they are not.
        """
        import numpy as np

        data, count = base64.b64decode(experts, validate=True), len(token_ids) - 1 - start
        numbers = np.frombuffer(data, dtype="<i4") if len(data) % 4 == 0 else np.zeros(0, dtype="<i4")
        width = 2 * len(numbers) // max(1, count)
        fits = count > 0 and width and len(numbers) * 2 == width * count and self._width in (0, width)
        if not fits or numbers.min() < 0 or numbers.max() >= UNKNOWN:
            raise ValueError(f"the engine names {len(numbers)} experts for {count} tokens")
        self._width = width
        ids = array("q", token_ids).tobytes()
        before, _ = self._shared(ids[: 8 * (start + 1)]) if start else (None, 0)
        self._replies.append(_Reply(ids, start, before, numbers.astype("<u2").tobytes()))

    def of(self, trajectory: Trajectory) -> list[bytes]:
        """Return the routes of each node's tokens, empty where the engine has not said them all; nothing if it said none."""
        found = [b""] * len(trajectory.nodes)
        whole = {reply.token_ids: reply for reply in self._replies}
        for index in reversed(range(len(trajectory.nodes))):  # a longer path also knows what a shorter one could not
            if trajectory.nodes[index].kind not in SAMPLED:
                continue
            path = array("q", trajectory.path(index)).tobytes()
            if (reply := whole.get(path)) is None:
                continue
            routes = self._from_the_first(reply) + array("H", [UNKNOWN] * (self._width // 2)).tobytes()
            end, place = len(path) // 8, index
            while place != ROOT:
                start = end - len(trajectory.nodes[place].token_ids)
                found[place] = found[place] or routes[start * self._width : end * self._width]
                end, place = start, trajectory.nodes[place].parent
        return found if any(found) else []

    def _from_the_first(self, reply: _Reply) -> bytes:
        before = b"" if reply.before is None else self._from_the_first(reply.before)[: reply.start * self._width]
        return before + reply.routes

    def _shared(self, prompt_ids: bytes) -> tuple[_Reply | None, int]:
        """Return the reply that shares most tokens with a prompt, and how many of its first tokens thus have routes."""
        best: tuple[_Reply | None, int] = (None, 0)
        for reply in self._replies:
            count = min(_common(reply.token_ids, prompt_ids), reply.known, len(prompt_ids) // 8 - 1)
            if count > best[1]:
                best = reply, count
        return best


def _common(one: bytes, other: bytes) -> int:
    """Return with how many equal tokens two sequences begin."""
    low, high = 0, min(len(one), len(other)) // 8
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[: 8 * middle] == other[: 8 * middle] else (low, middle - 1)
    return low
