"""Processor seconds of every test, printed by tier at the end of a session, and a limit for those of `make test`.

Where this process may make a control group (version 1, as root), all that it starts is counted, however it detaches itself;
elsewhere only what it waited for. Seconds of a fixture that several tests share are the fixture's and no test's.
"""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter

from nbrl.sandbox.walls.cgroups import hierarchies

TIERS = ("e2e", "ray", "engine", "sandbox", "process", "inprocess")
SLOWER = ("machines", "long", "more")  # what `make test` leaves out; a test belongs to the first that it has
FILE = Path(__file__).with_name("costs.json")
# What starts a real part may cost more than other tests: a shared fixture, or a test by how its path begins.
EXPENSIVE = {
    "fixture cluster": 60.0,
    "fixture trained": 400.0,
    "fixture tiny_engine": 60.0,
    "fixture engine": 60.0,
    "fixture whole": 120.0,
    "tests/durability/": 60.0,
    "tests/flows/test_loop.py": 60.0,
    "tests/infra/test_ray_cluster.py": 60.0,
    "tests/tasks/learner/test_ranks.py": 60.0,
}
SHOWN = 10


def command_of(keywords: Container[str]) -> str:
    """Return which command runs a test of these markers: `test`, or the first of `SLOWER` that it has."""
    return next((each for each in SLOWER if each in keywords), "test")


class Meter:
    """Counts the processor seconds of this process and of all that it starts."""

    def __init__(self) -> None:
        self._group: Path | None = None
        with contextlib.suppress(OSError):
            mounted = hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
            own = next((place.own for place in mounted if "cpuacct" in place.controllers), None)
            if own is not None:
                group = own / f"tests-{os.getpid()}"
                group.mkdir()
                (group / "cgroup.procs").write_text(str(os.getpid()))
                self._group = group

    def seconds(self) -> float:
        """Return the seconds used so far."""
        if self._group is not None:
            return int((self._group / "cpuacct.usage").read_text()) / 1e9
        return sum(os.times()[:4])

    def close(self) -> None:
        """Remove the control group if nothing else is left in it."""
        if self._group is not None:
            with contextlib.suppress(OSError):
                (self._group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self._group.rmdir()


class Measuring:
    """Adds to each report what it cost (`cpu`), and what fixtures of several tests that were made meanwhile cost (`shared`)."""

    def __init__(self, config: pytest.Config, reporting: "Reporting | None") -> None:
        """`reporting` is there in a process that also reports, and not in a worker of pytest-xdist."""
        self._config, self._reporting, self._meter = config, reporting, Meter()
        self._last, self._before = self._meter.seconds(), sum(os.times()[:2])
        self._shared: Counter[str] = Counter()
        self._depth = 0

    def _since(self) -> float:
        now = self._meter.seconds()
        used, self._last = now - self._last, now
        return used

    def pytest_collection_finish(self) -> None:
        spent = self._before + self._since()
        if self._reporting is not None:
            self._reporting.collected += spent
        else:
            self._config.workeroutput["collected"] = spent  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        outermost = fixturedef.scope != "function" and not self._depth
        began = self._meter.seconds()
        self._depth += 1
        try:
            return (yield)
        finally:
            self._depth -= 1
            if outermost:
                used = self._meter.seconds() - began
                self._shared[fixturedef.argname] += used
                self._last += used

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[Any]:
        report: Any = yield
        report.cpu, report.shared = self._since(), dict(self._shared)
        self._shared.clear()
        return report

    def pytest_unconfigure(self) -> None:
        self._meter.close()


class Reporting:
    """Adds up what all reports of a session say, and prints it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config, self._limit = config, config.option.budget
        self.collected = 0.0
        self._tests: Counter[str] = Counter()
        self._tiers: dict[str, str] = {}
        self._shared: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._files: Counter[tuple[str, str]] = Counter()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.collected += getattr(node, "workeroutput", {}).get("collected", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name, cpu, shared = report.nodeid, getattr(report, "cpu", 0.0), getattr(report, "shared", {})
        self._tests[name] += cpu
        self._tiers[name] = next((tier for tier in TIERS if tier in report.keywords), TIERS[-1])
        self._files[command_of(report.keywords), name.partition("::")[0]] += cpu + sum(shared.values())
        self._shared.update(shared)
        self._starts.update(shared.keys())

    def over(self) -> list[str]:
        """Return a line for each test, and for each shared fixture, that costs more than it may."""
        if not self._limit:
            return []
        fixtures = {f"fixture {name}": seconds / self._starts[name] for name, seconds in self._shared.items()}
        costs = {**self._tests, **fixtures}
        limits = {name: next((EXPENSIVE[each] for each in EXPENSIVE if name.startswith(each)), self._limit) for name in costs}
        return [
            f"{name}: {cpu:.1f} s of processor time, {limits[name]:g} allowed"
            for name, cpu in costs.items()
            if cpu > limits[name]
        ]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._config.option.write_costs:
            known = json.loads(FILE.read_text()) if FILE.exists() else {}
            for (command, file), seconds in sorted(self._files.items()):
                known.setdefault(command, {})[file] = round(seconds, 1)
            FILE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
        if self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if not self._tests:
            return
        terminalreporter.section("processor seconds")
        tiers: Counter[str] = Counter()
        for name, seconds in self._tests.items():
            tiers[self._tiers[name]] += seconds
        tests = Counter(self._tiers.values())
        parts = [
            ("collection", self.collected),
            *((f"{tier} ({tests[tier]} tests)", tiers[tier]) for tier in TIERS if tests[tier]),
        ]
        parts += [(f"shared {name}", seconds) for name, seconds in self._shared.most_common(SHOWN)]
        for what, seconds in [*parts, ("in all", self.collected + self._tests.total() + self._shared.total())]:
            terminalreporter.write_line(f"{seconds:8.1f}  {what}")
        terminalreporter.write_line("The most expensive tests:")
        for name, seconds in self._tests.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f}  {name}")
        for line in self.over():
            terminalreporter.write_line(f"Over the budget: {line}. Make it cheaper, or mark it `more`.", red=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, metavar="SECONDS", help="fail if a test costs more processor seconds than this")
    parser.addoption(
        "--write-costs", action="store_true", help=f"put what files cost into {FILE.name}, by which shards are dealt"
    )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporting = None
    if not hasattr(config, "workerinput"):
        reporting = Reporting(config)
        config.pluginmanager.register(reporting, "nbrl-reporting")
    if not getattr(config.option, "numprocesses", None) or reporting is None:
        config.pluginmanager.register(Measuring(config, reporting), "nbrl-measuring")
