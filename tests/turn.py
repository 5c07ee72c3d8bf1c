"""Which part of the slower tests is due: `python -m tests.turn` prints arguments for make, and the commit before this landing.

Landings are told apart by the pauses between commits and by their length, so that each one moves on by about one part however
many commits it has.
"""

import subprocess
from collections.abc import Sequence

MORE = 6  # shards of `make test-more`
PARTS = (*(f"test-more SHARD={number}/{MORE}" for number in range(1, MORE + 1)), "test-machines")  # arguments for make
PAUSE_S = 45 * 60
LONGEST_S = 3 * 3600  # from the first commit of a landing to its last
EARLIER_S = 4 * 3600  # what came so long before the last commit is not of its landing


def landings(times: Sequence[int]) -> int:
    """Return how many landings made commits at these times, oldest first."""
    count, first, last = 0, float("-inf"), float("-inf")
    for time in times:
        if time - last > PAUSE_S or time - first > LONGEST_S:
            count, first = count + 1, time
        last = time
    return count


def due(count: int) -> str:
    """Return the part whose turn it is after so many landings."""
    return PARTS[count % len(PARTS)]


def main() -> None:
    log = subprocess.run(["git", "log", "--format=%ct %H"], capture_output=True, text=True, check=True).stdout
    commits = [(int(time), name) for time, name in map(str.split, log.splitlines())]
    base = next((name for time, name in commits if time < commits[0][0] - EARLIER_S), commits[-1][1])
    print(due(landings([time for time, _ in reversed(commits)])))
    print(base)


if __name__ == "__main__":
    main()
