"""Questions a second that an evaluation answers and scores with a policy that answers at once, in two cells.

Ours is what `nbrl evaluate` does besides asking a model: a runner with clean kernels, chunks and tables on storage, scores with
intervals. Beside it the shape of L0's evaluation: a fresh bubblewrap and a stock kernel for each question, which are asked every
half second whether they have ended. The two take turns in one run, with the same number of questions at once.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hardware import processor
from stock_kernel import stock_kernel

from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Sampling
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.home import Home
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.evaluation.answers import answers_of
from nbrl.tasks.evaluation.scores import scores
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.rollout import runner as runner_module
from nbrl.tasks.rollout.plan import EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.samplers import Engines, Sampler
from nbrl.tasks.rollout.work_queue import WorkQueue
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load
from tests.tasks.queues import index_by

CELLS = ["product = 6 * 7\nprint(product)", "submit_final_answer(str(product))"]
LAST = "print(product)"
POLL_S = 0.5
SEED = 7


class ScriptedSamplers:
    """Plays the cells in every episode."""

    def __init__(self, plan: RunnerPlan) -> None:
        self.renderer = ChatTokenizer.load(plan.model.place, plan.agent)
        self._script = [f"<think>I multiply the numbers</think>\n<code>{cell}</code>" for cell in CELLS]

    @asynccontextmanager
    async def opened(self, plan: RoundPlan, engines: Engines) -> AsyncIterator[Callable[[], Sampler]]:
        yield lambda: Sampler(ScriptedPolicy(self._script, self.renderer), _never, lambda: 0.0)


async def _never() -> bool:
    return False


class Ours:
    def __init__(self, config: RunConfig, folder: Path) -> None:
        self._config, self._storage = config, Storage(StorageSettings(root=str(folder / "storage")))
        environments = {"sums": EnvironmentPlan()}
        runner_module.samplers_of = ScriptedSamplers  # type: ignore[assignment]
        agent, sandbox, rollout = config.agent, config.sandbox, config.rollout
        home = Home(folder / "home")
        plan = RunnerPlan(
            PlacedFolder(config.policy.path), environments, "attached", self._storage, agent, sandbox, rollout, home
        )
        self._queue = WorkQueue()
        self.runner = Runner(plan, 0, self._queue)

    async def evaluate(self, count: int) -> None:
        asked = {"question": "What is 6 * 7?", "answers": ["42"], "ability": "sums", "source": "", "environment": "sums"}
        questions = table_of([{"id": f"q{number}", **asked} for number in range(count)])
        rows = task_rows(questions.append_column("group", questions["id"]), 1, SEED)
        layout = RoundLayout(f"evaluations/{uuid.uuid4().hex}")
        plan = RoundPlan(layout.chunks(""), (), Sampling(), self._config.engine)
        self._storage.write_table(layout.trajectories, await index_by(self.runner, self._queue, rows, plan))
        trajectories = self._storage.read_table(layout.trajectories)
        rewards = score_table(_ungraded(with_references(trajectories, questions)), self._config.reward)
        found = scores(answers_of(trajectories, rewards, questions))
        if found[0].success.value != 1.0:
            raise RuntimeError(f"the evaluation went wrong: {found[0]}")


def _ungraded(rows: Any) -> Any:
    import pyarrow as pa

    for name in ("grade", "ungraded"):
        rows = rows.append_column(name, pa.array([""] * len(rows)))
    return rows


async def of_l0(count: int, concurrency: int) -> None:
    """Each question in a sandbox of its own, in which its cells run; the loop looks every half second for what has ended."""
    waiting, running, answers = list(range(count)), set[asyncio.Task[str]](), list[str]()
    while waiting or running:
        while waiting and len(running) < concurrency:
            waiting.pop()
            running.add(asyncio.create_task(_alone()))
        await asyncio.sleep(POLL_S)
        ended = {task for task in running if task.done()}
        answers += [task.result() for task in ended]
        running -= ended
    if answers != ["42\n"] * count:
        raise RuntimeError(f"the stock kernels answered {answers}")


async def _alone() -> str:
    said: list[str] = []
    async with stock_kernel() as client:
        for cell in (CELLS[0], LAST):
            said.clear()
            await client.execute_interactive(cell, output_hook=lambda message: said.append(message["content"].get("text", "")))
    return "".join(said)


async def measure(rounds: int, concurrency: int, ours_count: int, l0_count: int, folder: Path) -> dict[str, Any]:
    settings = [f"rollout.episodes_per_runner={concurrency}", f"sandbox.max_live={concurrency + 2}"]
    ours = Ours(load("tiny-cpu", settings), folder)
    rates: dict[str, list[float]] = {"ours": [], "l0": []}
    try:
        await ours.evaluate(concurrency)
        for _ in range(rounds):
            for name, count in (("ours", ours_count), ("l0", l0_count)):
                began = time.perf_counter()
                await (ours.evaluate(count) if name == "ours" else of_l0(count, concurrency))
                rates[name].append(count / (time.perf_counter() - began))
    finally:
        await ours.runner.stop()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "ours_questions_per_s": round(medians["ours"], 2),
        "l0_questions_per_s": round(medians["l0"], 2),
        "ratio": round(medians["ours"] / medians["l0"], 1),
        "at_once": concurrency,
        "rounds": rounds,
        "questions": {"ours": ours_count, "l0": l0_count},
        "spread": {name: [round(min(values), 2), round(max(values), 2)] for name, values in rates.items()},
        "machine": processor(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=8, help="questions at once, of both")
    parser.add_argument("--ours", type=int, default=256, help="questions of a round of ours")
    parser.add_argument("--l0", type=int, default=24, help="questions of a round of the other")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(asyncio.run(measure(given.rounds, given.concurrency, given.ours, given.l0, Path(folder)))))


if __name__ == "__main__":
    main()
