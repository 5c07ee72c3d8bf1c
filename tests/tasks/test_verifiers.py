"""Environments of the kind verifiers, by the real package in its own environment (`make setup-verifiers`)."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.tools.sessions import Asked, EpisodeSession
from nbrl.agent.trajectory import Status, Step, Trajectory, from_table
from nbrl.infra import own_code
from nbrl.infra.errors import InfraError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.verifiers import CODE, VerifiersEnvironment
from nbrl.tasks.environments.verifiers.link import ProgramLink
from nbrl.tasks.environments.verifiers.sessions import VerifiersSessions
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.runs.recipes import load
from tests.flows.conftest import NBRL
from tests.flows.model_server import act, model_server
from tests.processes import check_gone, mark
from tests.tasks.scripted import play

TASKSETS = Path(__file__).with_name("tasksets")
made = pytest.mark.skipif(not (CODE / ".venv-verifiers").exists(), reason="make setup-verifiers was not run")
pytestmark = [pytest.mark.more, pytest.mark.process, made]


@pytest.fixture(autouse=True)
def _own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(own_code.VARIABLE, "{}")
    for name in ("reverse_words", "corner_shop"):
        own_code.look(name, TASKSETS)


def taskset(name: str, **settings: Any) -> VerifiersEnvironment:
    return VerifiersEnvironment(kind="verifiers", taskset=name, **settings)


def asked(row: dict[str, Any]) -> Asked:
    return Asked(row["id"], row["question"], row["ability"], "e", row["reference"])


def ended(answer: str | None, steps: int = 1, status: Status = Status.ANSWERED) -> Trajectory:
    made = [Step(think="so", code=f"cell({number})", observation="seen") for number in range(steps)]
    return Trajectory(id="t", group="g", sample=0, question="", ability="", status=status, answer=answer, nodes=[], steps=made)


def played(environment: VerifiersEnvironment, work: Callable[[VerifiersSessions], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        sessions = await environment.session_source().open()
        try:
            return await work(sessions)
        finally:
            await sessions.close()

    return asyncio.run(run())


def tools(session: EpisodeSession) -> dict[str, Callable[..., Awaitable[Any]]]:
    def bound(tool: Any) -> Callable[..., Awaitable[Any]]:
        return lambda **arguments: tool.call(arguments)

    return {tool.name: bound(tool) for tool in session.tools}


def test_a_taskset_gives_questions_of_both_splits_whose_answers_only_its_own_hooks_know() -> None:
    environment = taskset("reverse_words", train=6, held_out=4)
    loaded = environment.load("environments.e")
    train, held_out = loaded.train.to_pylist(), loaded.held_out.to_pylist()
    assert [row["question"].split()[-2] for row in [*held_out, *train]] == [
        *("amber", "bay", "cedar", "dune", "elm", "fjord", "glade", "heath", "isle", "jetty")
    ]
    assert train[0]["question"] == "Answer with one word.\n\nWrite elm backwards."
    assert {(row["rule"], row["ability"], *row["answers"]) for row in train} == {("outcome", "reverse_words")}
    assert [row["id"] for row in held_out] == [f"held_out-{number:06d}" for number in range(4)]

    async def work(sessions: VerifiersSessions) -> list[Any]:
        outcomes = []
        for answer in ("mle", "elm", None):
            session = await sessions.start(asked(train[0]), 7)
            assert (list(session.tools), await session.observe(), session.done) == ([], "", False)
            outcomes.append(await session.outcome(ended(answer, steps=2)))
            await session.close()
        return outcomes

    right, wrong, none = played(environment, work)
    metrics = {"right": 1.0, "turns": 3.0, "reward": 1.0}
    assert right == {"reward": 1.0, "success": True, "steps": {}, "metrics": metrics}
    assert (wrong["reward"], none["reward"], wrong["success"], none["success"]) == (0.0, 0.0, False, False)


def test_held_out_tasks_may_have_settings_of_their_own_and_too_few_are_refused() -> None:
    environment = taskset("reverse_words", train=2, held_out=3, held_out_settings={"upper": True})
    loaded = environment.load("environments.e")
    assert [row["question"].split()[-2] for row in loaded.train.to_pylist()] == ["amber", "bay"]
    assert [row["question"].split()[-2] for row in loaded.held_out.to_pylist()] == ["AMBER", "BAY", "CEDAR"]
    with pytest.raises(ConfigError, match=r"reverse_words has 5 tasks, and environments\.e\.train and .*held_out ask for 6"):
        taskset("reverse_words", train=4, held_out=2, settings={"most": 5}).load("environments.e")
    with pytest.raises(ConfigError, match=r"environments\.e\.taskset: reverse_words does not take these settings: .*least"):
        taskset("reverse_words", settings={"least": 5}).load("environments.e")
    with pytest.raises(ConfigError, match=r"environments\.e\.taskset: no_such_set is no taskset that can be imported"):
        taskset("no_such_set").load("environments.e")


ODD = """
import verifiers.v1 as vf
__all__ = ["OddTaskset", *{exported!r}]
class Data(vf.TaskData):
    tags: set[str] = set()
class Tools(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def look(self) -> str:
        "Look."
        return "seen"
class OddTask(vf.Task[Data]):
{task}
class OddTaskset(vf.Taskset[OddTask, vf.TasksetConfig]):
    def load(self):
        yield OddTask(Data(**{data}))
{more}
"""
PAYS = "    @vf.reward\n    async def paid(self, trace) -> float:\n        return {}"
PICTURE = "{'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,AA'}}"
HARNESS = "class OddHarness(vf.Harness[vf.HarnessConfig]):\n    async def launch(self, *a, **k): ..."
PLAYER = "class OddEnv(vf.Env[vf.EnvConfig]):\n    async def run(self, task, agents): ..."
REFUSED = {
    "it brings a harness of its own": {"more": HARNESS, "exported": ["OddHarness"]},
    "it brings an environment of its own, OddEnv": {"more": PLAYER, "exported": ["OddEnv"]},
    "its tasks need a container": {"task": "    NEEDS_CONTAINER = True"},
    "it names an image for a container": {"data": "{'prompt': 'x', 'image': 'python:3.11'}"},
    "it has no prompt": {"data": "{}"},
    "its prompt has a picture": {"data": f"{{'prompt': [{{'role': 'user', 'content': [{PICTURE}]}}]}}"},
    "its prompt has a turn of the role assistant": {"data": "{'prompt': [{'role': 'assistant', 'content': 'x'}]}"},
    "it rewrites what the model is sent": {
        "task": "    @vf.intercept\n    async def change(self, request: vf.Request) -> None: ..."
    },
    "it stops at a request to the model": {
        "task": "    @vf.stop\n    async def enough(self, request: vf.Request) -> bool: return True"
    },
    "are a server at an address": {
        "task": "    @classmethod\n    def toolsets(cls, config): return [Tools(vf.ToolsetConfig(url='http://h/mcp'))]"
    },
    "run in a container": {
        "task": "    @classmethod\n    def toolsets(cls, config): return [Tools(vf.ToolsetConfig(colocated=True))]"
    },
    "uses a container (runtime.run)": {
        "task": "    async def setup(self, trace, runtime):\n        await runtime.run(['ls'], {})"
    },
    "cannot be begun and scored: TaskError": {"task": PAYS.format("1 / 0")},
    "is no taskset that can be imported": {"more": "1 / 0"},
}


def test_what_cannot_be_carried_over_is_refused_before_any_work_with_the_reason(tmp_path: Path) -> None:
    async def work(sessions: VerifiersSessions) -> dict[str, str]:
        link, said = await sessions.link(), {}
        for number, (words, given) in enumerate(REFUSED.items()):
            odd = {"task": PAYS.format(1.0), "data": "{'prompt': 'x'}", "more": "", "exported": [], **given}
            (tmp_path / f"odd{number}.py").write_text(ODD.format(**odd))
            try:
                await link.ask("open", 60, taskset=f"odd{number}", settings={"train": {}}, folder=str(tmp_path))
                await link.ask("tasks", 60, split="train", count=1)
                said[words] = "nothing"
            except ValueError as error:
                said[words] = str(error)
        return said

    said = played(taskset("reverse_words"), work)
    assert [words for words, reason in said.items() if words not in reason] == [], said


def test_tools_answer_each_trajectory_from_its_own_state_and_what_they_refuse_is_told_without_paths() -> None:
    environment = taskset("corner_shop", train=2, held_out=1)
    (row, other) = environment.load("e").train.to_pylist()

    async def work(sessions: VerifiersSessions) -> None:
        session, beside = [await sessions.start(asked(each), 0) for each in (row, other)]
        call = tools(session)
        assert {*call} == {"sell", "draw", "close", "meet", "steal", "price"}
        (sell,) = [tool for tool in session.tools if tool.name == "sell"]
        assert (sell.summary, [str(each) for each in sell.parameters]) == (
            "Sell so many of an item and return how many are left.",
            ["item: str", "count: int = ..."],
        )
        assert await call["sell"](item="item1") == 2
        session.step = 1
        assert await call["sell"](item="item1", count=2) == 0
        assert await call["price"](item="item7") == 7
        for wrong, reason in (
            ({"item": "item2"}, "there is no item2"),
            ({"count": 1}, "'item' is a required"),
            ({"item": 3}, "not fit"),
        ):
            with pytest.raises(ValueError, match=reason):
                await call["sell"](**wrong)
        with pytest.raises(ValueError, match=r"^steal failed: FileNotFoundError$"):
            await call["steal"](path="/etc/passwd")
        with pytest.raises(ValueError, match=r"^price failed: KeyError$"):
            await call["price"](item="none")
        both = await asyncio.gather(call["meet"](), tools(beside)["meet"]())  # tools that block run beside each other
        assert (both, session.done) == (["met", "met"], False)
        assert (await call["close"](), session.done, beside.done) == ("closed", True, False)
        outcome = await session.outcome(ended(None, 2, Status.DONE))
        assert (outcome["reward"], outcome["success"], outcome["metrics"]["calls"]) == (1.0, True, 8.0)
        assert (await beside.outcome(ended("x")))["reward"] == 0.0

    played(environment, work)


def test_fifty_sessions_interleaved_answer_as_one_after_the_other() -> None:
    environment = taskset("corner_shop", train=50, held_out=1)
    rows, lots = environment.load("e").train.to_pylist(), Random(5)
    scripts = [[lots.choice(["sell", "sell", "draw", "price", "wrong"]) for _ in range(6)] for _ in rows]

    async def one(sessions: VerifiersSessions, row: dict[str, Any], script: list[str], pause: bool) -> list[Any]:
        session, said = await sessions.start(asked(row), 0), list[Any]()
        item = json.loads(json.loads(row["reference"])["data"])["item"]
        for number, name in enumerate(script):
            session.step = number
            given = {"draw": {}, "wrong": {"item": "zzz"}}.get(name, {"item": item})
            try:
                said.append(await tools(session)["sell" if name == "wrong" else name](**given))
            except ValueError as error:
                said.append(str(error))
            if pause:
                await asyncio.sleep(lots.random() / 100)
        said.append(await session.outcome(ended("x", len(script))))
        await session.close()
        return said

    async def work(sessions: VerifiersSessions) -> None:
        pairs = [*zip(rows, scripts, strict=True)]
        at_once = await asyncio.gather(*(one(sessions, row, script, True) for row, script in pairs))
        assert [await one(sessions, row, script, False) for row, script in pairs] == at_once

    played(environment, work)


ROUGH = """
import asyncio, re, urllib.request
import verifiers.v1 as vf
__all__ = ["RoughTaskset"]
class RoughTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def paid(self, trace) -> float:
        said = trace.last_reply
        if said == "boom":
            raise KeyError(said)
        if said == "net":
            raise ConnectionResetError("the judge is away")
        return float(bool(re.fullmatch("(a+)+b", said)))
class RoughTaskset(vf.Taskset[RoughTask, vf.TasksetConfig]):
    def load(self):
        for number in range(9):
            yield RoughTask(vf.TaskData(prompt=f"Say b, {number}"), self.config.task)
"""


def test_a_trajectory_that_makes_its_scorer_raise_or_hang_is_wrong_and_a_fault_of_the_network_is_none_of_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "rough.py").write_text(ROUGH)
    own_code.look("rough", tmp_path)
    environment = taskset("rough", train=1, held_out=1)
    (row,) = environment.load("e").train.to_pylist()

    async def work(sessions: VerifiersSessions) -> None:
        async def scored(answer: str) -> Any:
            return await (await sessions.start(asked(row), 0)).outcome(ended(answer))

        hung, right, raised = await asyncio.gather(scored("a" * 60), scored("aab"), scored("boom"))
        assert (right["reward"], raised["reward"], hung["reward"]) == (1.0, 0.0, 0.0)
        assert raised["metrics"]["unscorable"] == hung["metrics"]["unscorable"] == 1.0
        with pytest.raises(InfraError, match="the judge is away"):
            await scored("net")

    played(environment, work)


def test_a_program_that_is_killed_fails_what_is_under_way_and_the_next_trajectory_starts_it_again() -> None:
    environment = taskset("corner_shop", train=1, held_out=1)
    (row,) = environment.load("e").train.to_pylist()

    async def work(sessions: VerifiersSessions) -> None:
        session = await sessions.start(asked(row), 0)
        first: ProgramLink = await sessions.link()
        waiting = asyncio.create_task(tools(session)["meet"]())
        await asyncio.sleep(0)
        os.kill(first.pid, signal.SIGKILL)
        with pytest.raises(InfraError, match="the program has ended"):
            await waiting
        with pytest.raises(InfraError):
            await session.outcome(ended("x"))
        await session.close()
        again = await sessions.start(asked(row), 0)
        assert await tools(again)["sell"](item="item1") == 2
        assert (await sessions.link()).pid != first.pid

    played(environment, work)


@pytest.mark.sandbox
def test_trajectories_in_real_kernels_call_the_tools_and_are_paid_by_the_taskset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = taskset("corner_shop", train=1, held_out=1)
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write({"shop": environment}, storage, layout)
    config = load("tiny-cpu", ["agent.context_tokens=1200", "agent.action_tokens=400", "rollout.attempts=1"])
    prompts = stored.read(storage, layout, "train")
    prompts = prompts.append_column("group", prompts["id"])
    plays = [
        ["print(sell('item1', 2))", "print(sell('item1'), close())", "1"],
        ["try:\n    sell('gold')\nexcept Exception as error:\n    print(error)", "submit_final_answer('done')"],
        ["print(open('/proc/self/environ').read().count('amount'), sell.__doc__)", "submit_final_answer('x')"],
    ]
    plan = EnvironmentPlan(sessions=environment.session_source())
    table: pa.Table = play(monkeypatch, config, storage, layout, {"shop": plan}, task_rows(prompts, len(plays), 0), plays)
    sold, refused, looked = from_table(table)
    assert [each.status for each in (sold, refused, looked)] == ["done", "answered", "answered"], [sold.failure, refused.failure]
    assert [step.observation for step in sold.steps] == ["1", "0 closed"]
    assert refused.steps[0].observation.endswith("there is no gold")
    scored = score_table(with_references(table, prompts), RewardSettings())
    assert scored["success"].to_pylist() == [1.0, 0.0, 0.0]
    assert json.loads(sold.outcome)["metrics"] == {"sold": 1.0, "calls": 3.0, "reward": 1.0}


@pytest.mark.e2e
def test_a_taskset_beside_a_recipe_is_evaluated_by_one_command(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    shutil.copy(TASKSETS / "reverse_words.py", tmp_path / "code")
    (tmp_path / "code" / "mine.yaml").write_text(
        "environments: {w: {kind: verifiers, taskset: reverse_words, train: 0, held_out: 10, prompt: Be brief.}}\n"
    )
    with model_server(act("submit_final_answer('rebma')")) as server:
        line = ["evaluate", "code/mine.yaml", "--endpoint", f"{server.url}/v1", "--samples", "2", "--json"]
        done = subprocess.run([str(NBRL), *line], cwd=tmp_path, env=mark("words"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    summary = json.loads(done.stdout)
    assert (summary["trajectories"], summary["failed"]) == (20, 0)
    assert summary["metrics"]["success"] == pytest.approx(0.1)
    check_gone("words")
