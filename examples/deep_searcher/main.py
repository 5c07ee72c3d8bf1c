"""The deep searcher: a long report, written with searches, a notepad and a draft in a context much too small for it.

    python examples/deep_searcher/main.py                       # offline: a written policy, the corpus beside this file
    python examples/deep_searcher/main.py --endpoint https://api.openai.com/v1 --model NAME --api-key-env OPENAI_API_KEY
    python examples/deep_searcher/main.py --endpoint URL --model NAME --web serper --question "..."

The cells run in a sandboxed kernel either way. The steps are shown while they happen; report and notebook are saved.
"""

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from rich.console import Console

from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import AgentError
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Policy, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer, Renderer
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment
from nbrl.agent.tools.settings import ToolSettings
from nbrl.agent.trajectory import Trajectory
from nbrl.flows.ask.endpoint import Endpoint, connect
from nbrl.flows.display.saved import save
from nbrl.flows.display.trajectory import EpisodeSpinner
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.errors import ConfigError, RunError
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel

HERE = Path(__file__).parent
TOKENIZER = HERE.parent.parent / "infra/policies/tiny"
# Offline these actions stand for a model's: a plan, searches, facts, a section at a time, sources out of history, the report.
ACTIONS = (HERE / "demonstration.txt").read_text(encoding="utf-8").strip().split("\n\n\n")
QUESTION = (
    "Write a report on how the town of Vornhaven went over to tidal power: why it did, what was built, what it cost, what it "
    "yields and what nobody had foreseen."
)


def settings(given: argparse.Namespace) -> AgentSettings:
    """The context is small on purpose: cells leave it all the time, and the notepad carries the report through.

    Offline a token is of the tiny policy's tokenizer, little more than a character; a model's holds about four.
    """
    tokens = given.context_tokens or (16_000 if given.endpoint else 7_000)
    return AgentSettings(
        max_steps=40 if given.endpoint else len(ACTIONS),
        context_tokens=tokens,
        action_tokens=min(3_000, tokens // 4),
        observation_chars=6_000,
        trim=given.trim,
        deadline_s=1_800.0,
        system_prompt=(HERE / "system.txt").read_text(encoding="utf-8"),
    )


def tools(given: argparse.Namespace) -> ToolSettings:
    """Without --web the corpus beside this file; with it an engine and Jina's reader, keys in the environment of this process."""
    if given.web is None:
        return ToolSettings.model_validate({"default": ["search"], "search": {"engine": "corpus", "top_k": 2}})
    web = {
        "default": ["search", "read_page"],
        "search": {"engine": given.web},
        "read_page": {"reader": "jina", "max_chars": 20_000},
    }
    return ToolSettings.model_validate(web)


async def policy(stack: AsyncExitStack, given: argparse.Namespace, chosen: AgentSettings) -> tuple[Policy, Renderer]:
    """Who acts, and the tokens it counts in: written actions, or a model behind a SGLang or an OpenAI-compatible server."""
    if given.endpoint is None:
        tokenizer = ChatTokenizer.load(TOKENIZER)
        return ScriptedPolicy(ACTIONS, tokenizer), tokenizer
    key = os.environ.get(given.api_key_env) if given.api_key_env else None
    if given.api_key_env and not key:
        raise ConfigError(f"the environment variable {given.api_key_env} holds no key; set it, or name another")
    return await connect(stack, Endpoint(given.endpoint, given.model, key), Sampling(temperature=given.temperature), chosen)


async def research(given: argparse.Namespace) -> Trajectory:
    """One episode. These four parts, a policy, a kernel, a toolbox and a task, are all that an episode needs."""
    chosen, task = settings(given), Task("report", "report", 0, given.question, "research", seed=0)
    async with AsyncExitStack() as stack:
        acting, tokenizer = await policy(stack, given, chosen)
        corpus = Corpus.in_memory((HERE / "corpus.txt").read_text(encoding="utf-8").splitlines())
        brought = {task.environment: Equipment(corpus)}
        # A clean kernel that knows notepad, context, history and a function for each tool; calls come back to this process.
        notebooks = await stack.enter_async_context(Notebooks.open(tools(given), brought, SandboxSettings(warm=0)))
        kernel, toolbox = await stack.enter_async_context(notebooks.new(task.environment, task.ability))
        with EpisodeSpinner(Console(stderr=True), task.question, chosen) as live:
            return await Episode(task, acting, SandboxedKernel(kernel), toolbox, tokenizer, chosen, live).run()


def trims(trajectory: Trajectory) -> int:
    """How often the context was trimmed: each trim starts a branch of the message tree at the task, after the first path."""
    task = next(index for index, node in enumerate(trajectory.nodes) if node.kind == "task")
    return sum(node.parent == task and node.kind in ("action", "summary") for node in trajectory.nodes) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--endpoint", metavar="URL", help="the model's server; without it the written actions are played")
    parser.add_argument("--model", metavar="NAME")
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the endpoint's key")
    parser.add_argument("--web", choices=["serper", "exa", "firecrawl"], help="search the web; the key is in ENGINE_API_KEY")
    parser.add_argument("--trim", choices=["hard", "soft"], default="hard", help="soft: the model sums up what leaves")
    parser.add_argument("--context-tokens", type=int)
    parser.add_argument("--temperature", type=float, default=0.6)
    parser.add_argument("--save", type=Path, default=Path("report.ipynb"), help="the notebook; the report goes beside it as .md")
    given = parser.parse_args()
    online = ("question", "model", "api_key_env", "web", "trim", "temperature")
    if given.endpoint is None and (vain := [name for name in online if vars(given)[name] != parser.get_default(name)]):
        parser.error(f"--{vain[0].replace('_', '-')} does nothing without --endpoint: offline the actions are written")
    try:
        trajectory = asyncio.run(research(given))
        save(given.save, trajectory)
    except (AgentError, SandboxError, RunError) as error:
        sys.exit(f"deep_searcher: {error}")
    calls = sum(len(step.tool_calls) for step in trajectory.steps)
    print(
        f"{trajectory.status} after {len(trajectory.steps)} steps, {calls} tool calls, {trims(trajectory)} trims of the context"
    )
    print(f"notebook: {given.save}")
    if trajectory.answer is None:
        return 1
    report = given.save.with_suffix(".md")
    report.write_text(trajectory.answer + "\n", encoding="utf-8")
    print(f"report: {report}, {len(trajectory.answer.split())} words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
