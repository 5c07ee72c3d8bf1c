"""Parts of the slower tests: `--shard k/n` deals them out, `--touched BASE` takes those of what changed since a commit."""

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.budget import FILE, command_of

ROOT = Path(__file__).parents[1]
# Files whose tests share something expensive: they go to one worker and to one shard.
TOGETHER = {
    "tests/infra/test_engine_policies.py": "tiny engine",
    "tests/flows/test_agent_engine.py": "tiny engine",
    "tests/flows/test_program_training.py": "tiny engine",
    "tests/flows/test_loop.py": "trained",
    "tests/flows/test_distill.py": "trained",
    "tests/flows/test_published.py": "trained",
    "tests/flows/test_evaluate.py": "trained",
    "tests/flows/pages/test_screenshots.py": "trained",
}
# Slower tests that a change below a folder may break, besides those of the same path below tests/.
CONCERNED = {
    "agent/": ("tests/examples/",),
    "flows/": ("tests/durability/",),
    "flows/warmstart": ("tests/flows/warmstart/",),
    "infra/engine/": ("tests/infra/test_engine", "tests/tasks/learner/test_remote_engine.py", "tests/flows/test_loop.py"),
    "infra/prefect": ("tests/infra/test_prefect", "tests/flows/test_schedule.py"),
    "infra/process/": ("tests/flows/test_loop.py", "tests/flows/test_supervision.py"),
    "infra/ray": ("tests/infra/test_ray", "tests/tasks/test_runner.py"),
    "infra/storage": ("tests/infra/test_cloud", "tests/durability/"),
    "sandbox/": ("tests/hostile/",),
    "tasks/nodes/": ("tests/durability/",),
    "tasks/services/": ("tests/flows/test_supervision.py",),
    "tasks/warmstart/": ("tests/flows/warmstart/",),
}
UNKNOWN_S = 20.0  # of a file that was never measured
TOUCHED_S = 700.0  # processor seconds for the folders of one change; what does not fit waits for its shard


def unit(nodeid: str) -> str:
    """Return what a test belongs to: its file, or the name that several files share."""
    file = nodeid.partition("::")[0]
    if file.startswith("tests/hostile/"):
        return "arena of bubblewrap" if "[bubblewrap" in nodeid else "arena of the zygote"
    return TOGETHER.get(file, file)


def deal(costs: Mapping[str, float], shards: int) -> list[list[str]]:
    """Return the units of each shard, of about equal cost: the most expensive unit first, each to the cheapest shard so far."""
    dealt: list[list[str]] = [[] for _ in range(shards)]
    sums = [0.0] * shards
    for name in sorted(costs, key=lambda name: (-costs[name], name)):
        cheapest = sums.index(min(sums))
        dealt[cheapest].append(name)
        sums[cheapest] += costs[name]
    return dealt


def concerned(changed: Iterable[str]) -> list[str]:
    """Return how the paths of the tests begin that these files concern: by their name, their folder, and the table."""
    found: dict[str, None] = {}
    for path in changed:
        if path.startswith("tests/"):
            found[path] = None
            continue
        file = Path("tests", path)
        folder = next(each for each in file.parents if (ROOT / each).is_dir())
        if folder != Path("tests"):
            found.update(dict.fromkeys((f"{folder}/test_{file.stem}", f"{folder}/")))
        found.update(dict.fromkeys(test for prefix, tests in CONCERNED.items() if path.startswith(prefix) for test in tests))
    return list(found)


def within(names: Iterable[str], costs: Mapping[str, float], limit: float) -> tuple[list[str], list[str]]:
    """Return those that fit into so many processor seconds, the first ones first, and the others."""
    fitting: list[str] = []
    others: list[str] = []
    for name in names:
        fits = sum(costs[each] for each in fitting) + costs[name] <= limit
        (fitting if fits else others).append(name)
    return fitting, others


def changed_since(base: str) -> list[str]:
    """Return the files that differ between a commit and the working tree; a CalledProcessError if there is no such commit."""
    command = ["git", "diff", "--name-only", base]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def costs_of(items: Sequence[pytest.Item]) -> dict[str, float]:
    """Return the processor seconds of each unit that these tests are of, as they were last measured."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    parts = {(unit(item.nodeid), command_of(item.keywords), item.nodeid.partition("::")[0]) for item in items}
    by_unit = groupby(sorted(parts), key=lambda part: part[0])
    return {name: sum(known.get(command, {}).get(file, UNKNOWN_S) for _, command, file in each) for name, each in by_unit}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="the K-th of N parts of the selected tests, of about equal cost")
    parser.addoption("--touched", metavar="BASE", help="besides, tests of the folders that changed since this commit")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    shard, base = config.option.shard, config.option.touched
    if not (shard or base):
        return
    costs, chosen = costs_of(items), set[str]()
    if shard:
        number, _, shards = shard.partition("/")
        if not (number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
            raise pytest.UsageError(f"--shard is {shard!r}; give it as 2/6, the second of six parts")
        chosen |= set(deal(costs, int(shards))[int(number) - 1])
    if base:
        prefixes = concerned(changed_since(base))
        asked = dict.fromkeys(unit(item.nodeid) for prefix in prefixes for item in items if item.nodeid.startswith(prefix))
        fitting, left_out = within([name for name in asked if name not in chosen], costs, TOUCHED_S)
        chosen |= set(fitting)
        if left_out:
            _say(config, f"Left to their shards: {', '.join(left_out)}")
    config.hook.pytest_deselected(items=[item for item in items if unit(item.nodeid) not in chosen])
    items[:] = [item for item in items if unit(item.nodeid) in chosen]


def _say(config: pytest.Config, line: str) -> None:
    """Print a line; a worker of pytest-xdist hands it on to the process that prints."""
    if hasattr(config, "workeroutput"):
        config.workeroutput["said"] = line
    else:
        print(line)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    if node.gateway.id == "gw0" and (line := getattr(node, "workeroutput", {}).get("said")):
        print(f"\n{line}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A change that concerns no test is no failure."""
    if session.config.option.touched and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
