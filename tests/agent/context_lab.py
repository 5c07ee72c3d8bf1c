"""Episodes for tests of the context: scripted policies that remember what they were asked, inline kernels."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Trajectory
from tests.tokenizer import byte_tokenizer

TASK = Task(id="q-0", group="q", sample=0, question="Where was Tilo born?", ability="one_hop", seed=1)
TOKENIZER = byte_tokenizer()


def act(code: str) -> str:
    return f"<think>I think about it</think><code>{code}</code>"


def settings(**changes: object) -> AgentSettings:
    """A small context; a token is a byte."""
    small = {"max_steps": 8, "context_tokens": 900, "action_tokens": 150, "system_prompt": "s", "observation_chars": 200}
    if changes.get("trim") == "soft":
        small |= {"summary_tokens": 60}
    return AgentSettings.model_validate(small | changes)


def shown_as(messages: Sequence[Message]) -> str:
    """What a prompt of these messages reads as."""
    turns = "".join(f"<|im_start|>{message.role}\n{message.text}<|im_end|>\n" for message in messages)
    return f"{turns}<|im_start|>assistant\n"


@dataclass
class Asked:
    """Plays cells and summaries in order, the last of each again and again, and keeps every prompt and its room."""

    cells: Sequence[str]
    summaries: Sequence[str] = ("so far so good",)
    prompts: list[Prompt] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    tokenizer: ChatTokenizer = TOKENIZER
    played: int = 0
    summed: int = 0

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        self.prompts.append(prompt)
        self.rooms.append(max_tokens)
        if "<summarise>" in prompt.messages[-1].text:
            text = self.summaries[min(self.summed, len(self.summaries) - 1)]
            self.summed += 1
        else:
            text = self.cells[min(self.played, len(self.cells) - 1)]
            self.played += 1
        ids = self.tokenizer.encode_action(text)
        cut = ids[:max_tokens]
        return Generation(cut, [-0.25] * len(cut), "7", "stop" if cut == ids else "length")

    @property
    def texts(self) -> list[str]:
        return [shown_as(prompt.messages) for prompt in self.prompts]


def play(policy: Asked, chosen: AgentSettings) -> Trajectory:
    async def run() -> Trajectory:
        toolbox = Toolbox([])
        return await Episode(TASK, policy, InlineKernel(prelude([]), toolbox.call), toolbox, policy.tokenizer, chosen).run()

    return asyncio.run(run())
