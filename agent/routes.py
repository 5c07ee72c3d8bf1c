"""The experts that an engine chose for the tokens of an episode, from its replies to the tree of the trajectory.

A route is the experts of one token in all layers of a mixture of experts, layer after layer, as numbers of 16 bits. The last
token that was sampled is not forwarded by the engine, so its route is unknown.
"""

import base64
import hashlib
from array import array
from collections.abc import Sequence

from nbrl.agent.trajectory import ROOT, SAMPLED, Trajectory

UNKNOWN = 0xFFFF


class RouteLog:
    """Keeps the routes of all requests of an episode by their tokens."""

    def __init__(self) -> None:
        self._by_path: dict[bytes, tuple[int, bytes]] = {}  # bytes of one route, and the routes

    def keep(self, token_ids: Sequence[int], experts: str) -> None:
        """Keep the routes of a request, whose tokens are those of the prompt and then the sampled ones.

        `experts` are numbers of 32 bits in base64, for all tokens but the last. Raises ValueError if they are not.
        """
        numbers = array("i", base64.b64decode(experts, validate=True))
        count = len(token_ids) - 1
        if not numbers or count < 1 or len(numbers) % count or not all(0 <= number < UNKNOWN for number in numbers):
            raise ValueError(f"the engine names {len(numbers)} experts for {count} tokens")
        self._by_path[_key(token_ids)] = 2 * len(numbers) // count, array("H", numbers).tobytes()

    def of(self, trajectory: Trajectory) -> list[bytes]:
        """Return the routes of each node's tokens, empty where the engine has not said them all; nothing if it said none."""
        found = [b""] * len(trajectory.nodes)
        for index, node in enumerate(trajectory.nodes):
            if node.kind not in SAMPLED:
                continue
            path = trajectory.path(index)
            width, routes = self._by_path.get(_key(path), (0, b""))
            routes += array("H", [UNKNOWN] * (width // 2)).tobytes()
            end, place = len(path), index
            while place != ROOT and width:
                start = end - len(trajectory.nodes[place].token_ids)
                found[place] = found[place] or routes[start * width : end * width]
                end, place = start, trajectory.nodes[place].parent
        return found if any(found) else []


def _key(token_ids: Sequence[int]) -> bytes:
    return hashlib.sha256(array("q", token_ids).tobytes()).digest()
