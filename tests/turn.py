"""Which part of the slower tests is due: `python -m tests.turn` prints arguments for make, and the commit before this landing.

Landings are told apart by the pauses between commits, so that each one moves on by about one part however many commits it has.
"""

import subprocess
from collections.abc import Sequence
from itertools import pairwise

MORE = 6  # shards of `make test-more`
PARTS = (*(f"test-more SHARD={number}/{MORE}" for number in range(1, MORE + 1)), "test-machines")  # arguments for make
PAUSE_S = 45 * 60
LANDING_S = 4 * 3600  # no landing took longer from its first commit to its last


def landings(times: Sequence[int]) -> int:
    """Return how many landings made commits at these times, oldest first."""
    return bool(times) + sum(later - earlier > PAUSE_S for earlier, later in pairwise(times))


def due(count: int) -> str:
    """Return the part whose turn it is after so many landings."""
    return PARTS[count % len(PARTS)]


def main() -> None:
    log = subprocess.run(["git", "log", "--format=%ct %H"], capture_output=True, text=True, check=True).stdout
    commits = [(int(time), name) for time, name in map(str.split, log.splitlines())]
    base = next((name for time, name in commits if time < commits[0][0] - LANDING_S), commits[-1][1])
    print(due(landings([time for time, _ in reversed(commits)])))
    print(base)


if __name__ == "__main__":
    main()
