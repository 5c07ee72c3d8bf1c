"""One answer of the policy to a prompt that a cell wrote."""

import asyncio
import time

from nbrl.agent.episode import Task
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policy import Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import storable
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.trajectory import ROOT, Node, Status, Step, Trajectory

SYSTEM = "You answer one request, without tools."
_THOUGHT = "</think>"


class OneAnswer:
    """One request for at most `max_tokens`; single use. `run` raises ValueError where the prompt does not fit, and AgentError."""

    def __init__(self, task: Task, policy: Policy, tokenizer: Renderer, settings: AgentSettings, max_tokens: int) -> None:
        self._task, self._policy, self._tokenizer, self._settings = task, policy, tokenizer, settings
        self._max_tokens = max_tokens
        self._nodes: list[Node] = []
        self._steps: list[Step] = []
        self._answer: str | None = None
        self._began = time.time()

    async def run(self) -> Trajectory:
        """Return the trajectory of one step."""
        system, prompt, tokenizer, limit = SYSTEM, self._task.question, self._tokenizer, self._settings.context_tokens
        first = tokenizer.message("system", system)
        second = await asyncio.to_thread(tokenizer.message, "user", prompt, "system")
        second = [*second, *tokenizer.generation_prompt()]
        room = min(self._max_tokens, limit - len(first) - len(second))
        if room < 1:
            raise ValueError(f"the prompt takes {len(first) + len(second)} tokens, and {limit} are allowed with the answer")
        clock = time.monotonic()
        messages = [Message("system", system), Message("user", prompt)]
        self._nodes = [
            Node(parent=ROOT, kind="system", step=0, token_ids=first),
            Node(parent=0, kind="task", step=0, token_ids=second),
        ]
        made = await self._policy.generate(Prompt([first, second], messages), room, self._task.seed)
        version = made.weights_version
        self._nodes.append(
            Node(parent=1, kind="sampled", step=0, token_ids=made.token_ids, logprobs=made.logprobs, weights_version=version)
        )
        text = made.text if made.text is not None else tokenizer.decode(made.token_ids)
        thought, _, said = text.rpartition(_THOUGHT)
        self._answer = storable(said.strip())
        self._steps = [Step(kind="reply", think=storable(thought), code=self._answer, policy_seconds=time.monotonic() - clock)]
        return self.trajectory(Status.ANSWERED)

    def trajectory(self, status: Status) -> Trajectory:
        """Return the trajectory so far."""
        return self._task.ended(status, "", self._answer, self._nodes, self._steps, self._began)
