"""Servers of OpenEnv that are started here: they end with their owner, and real kernels play with them."""

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit.sessions import SessionReplay
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.openenv import OpenEnvEnvironment
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
from tests.processes import KEY, check_gone, mark, marked, told
from tests.tasks.scripted import play

FAKE = str(Path(__file__).with_name("openenv_fake.py"))


@pytest.fixture
def started() -> Iterator[str]:
    """The mark of what the test starts."""
    token = secrets.token_hex(8)
    yield token
    check_gone(token)


def environment(started: str, *words: str, replayable: bool = False) -> OpenEnvEnvironment:
    command = ["env", f"{KEY}={mark(started)[KEY]}", *(words or (sys.executable, FAKE, "{port}"))]
    return OpenEnvEnvironment(kind="openenv", command=command, full_reward=2.0, train=4, held_out=1, replayable=replayable)


@pytest.mark.process
@pytest.mark.more
def test_a_server_that_ended_is_started_again_and_ends_with_its_owner(started: str) -> None:
    async def work() -> None:
        sessions = await environment(started).session_source().open()
        try:
            asked = Asked("", "", "openenv", "e", json.dumps({"seed": 1}))
            await (await sessions.start(asked, 0)).close()
            (server,) = [pid for pid in marked(started) if b"keeper.py" not in told(pid)]
            os.kill(server, signal.SIGKILL)
            while marked(started):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)
            session = await sessions.start(asked, 0)
            assert await session.observe() == "guess"
            await session.close()
        finally:
            await sessions.close()

    asyncio.run(work())


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("sh", "-c", "echo no model at {port} >&2; exit 3"), r"ended at its start \(exit status 3\): no model at \d+"),
        (("/no/such/program", "{port}"), "ended at its start"),
    ],
)
def test_a_server_that_does_not_start_is_an_error_before_any_work(started: str, words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ConfigError, match=f"^environments.e: its server {reason}"):
        environment(started, *words).load("environments.e")


@pytest.mark.e2e
@pytest.mark.more
def test_a_recipe_with_a_server_is_evaluated_by_one_command(started: str, tmp_path: Path) -> None:
    command = json.dumps([*environment(started).command])
    (tmp_path / "game.yaml").write_text(
        f"environments: {{game: {{kind: openenv, command: {command}, full_reward: 2, train: 0, held_out: 10}}}}\n"
    )
    with model_server(act("guess(3)\nsubmit_final_answer('it is 3')")) as server:
        line = ["evaluate", "game.yaml", "--endpoint", f"{server.url}/v1", "--samples", "2", "--json"]
        done = subprocess.run([str(NBRL), *line], cwd=tmp_path, env=mark(started), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    summary = json.loads(done.stdout)
    assert (summary["trajectories"], summary["failed"]) == (20, 0)
    assert summary["metrics"]["success"] == pytest.approx(0.1)  # one of ten numbers is 3


PLAYS = [
    ["print(guess({seed}))"],
    ["for number in range(10):\n    said = guess(number)\n    if said['done']:\n        break\nprint(said)"],
    ["print(guess(11))", "print(guess({seed}))", "print('too late')"],
    ["try:\n    guess('x')\nexcept Exception as error:\n    print(error)\ngive_up()"],
    ["print(guess(11))", "submit_final_answer('x')"],
    ["try:\n    guess(11, reward=5)\nexcept Exception as error:\n    print(error)", "print(guess({seed}))"],
    ["print(host_call('state', {{}}))", "1", "2", "3"],
    ["guess({seed})\nprint(guess({seed}))"],
]


@pytest.mark.sandbox
def test_trajectories_play_an_episode_each_and_are_paid_by_the_server(
    started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = environment(started, replayable=True)
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write({"game": made}, storage, layout)
    config = load("tiny-cpu", ["agent.context_tokens=900", "agent.action_tokens=400", "rollout.attempts=1"])
    prompts = stored.read(storage, layout, "train").slice(3, 1)
    seed = json.loads(prompts["reference"][0].as_py())["seed"]
    prompts = prompts.append_column("group", prompts["id"])
    rows = task_rows(prompts, len(PLAYS), 0)
    cells = [[cell.format(seed=seed) for cell in cells] for cells in PLAYS]
    table = play(monkeypatch, config, storage, layout, {"game": EnvironmentPlan(sessions=made.session_source())}, rows, cells)
    trajectories = from_table(table)
    assert [each.failure for each in trajectories] == [""] * len(PLAYS)
    assert [str(each.status) for each in trajectories] == [
        "done", "done", "done", "done", "answered", "done", "step_limit", "done",
    ]  # fmt: skip
    seen = [step.observation for each in trajectories for step in each.steps]
    assert not [text for text in seen if "reward" in text and "unexpected" not in text]
    with SessionReplay({"game": made}, 60.0) as again:
        assert list(again.contradictions(rows, trajectories)) == []
        assert again.counts.sessions == len(PLAYS)
        trajectories[0].outcome = json.dumps(json.loads(trajectories[0].outcome) | {"reward": 1000.0})
        assert "another outcome" in next(again.contradictions(rows, trajectories[:1]))
    scored = score_table(with_references(table, prompts), RewardSettings(qa=1.0, format=0.0, execution=0.0))
    assert scored["success"].to_pylist() == [1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    paid = scored["step_rewards"].to_pylist()
    assert paid[0] == [1.0]
    assert paid[1] == [1.0 + 3 * 0.125]
    assert paid[2] == [0.125, 1.0]
    assert paid[3] == [-0.5]
    assert paid[4] == [0.125, 0.0]
    assert paid[6] == [0.0] * 4
