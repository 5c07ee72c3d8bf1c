"""Policies that play actions: those of a recording, or written ones."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from nbrl.agent.errors import PolicyError
from nbrl.agent.grammar import Malformed
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.trajectory import Step


class RecordedPolicy:
    """Plays the actions of `steps` in their order, whatever the prompt says; a summary where one is asked for.

    The texts are those of a trajectory under the same `settings`. Raises PolicyError when asked for more than was recorded.
    """

    def __init__(self, steps: Iterable[Step], settings: AgentSettings, tokenizer: Renderer) -> None:
        self._steps, self._settings, self._tokenizer = deque(steps), settings, tokenizer

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        if prompt.messages[-1].body.endswith(self._settings.render_summary_prompt()):
            return self._said(self._summary())
        while self._steps and self._steps[0].kind == "summary":
            self._steps.popleft()
        if not self._steps:
            raise PolicyError("the recording has no further action; replay it with the settings it was made with")
        step = self._steps.popleft()
        if not step.malformed:
            return self._said(self._settings.grammar.write(step.think, step.code))
        # What the grammar does not find wrong was wrong by its length.
        cut = self._settings.grammar.parse(step.think) != Malformed(step.malformed)
        return self._said(step.think, cut)

    def _summary(self) -> str:
        """Return the summary that was recorded here; none where the context is full and was not at the recording."""
        if not self._steps or self._steps[0].kind != "summary":
            return ""
        step = self._steps.popleft()
        return f"{step.think}</{self._settings.think_tag}>{step.observation}"

    def _said(self, text: str, cut: bool = False) -> Generation:
        ids = self._tokenizer.encode_action(text)
        return Generation(ids, [0.0] * len(ids), "recorded", "length" if cut else "stop", text)


class ScriptedPolicy:
    """Plays `script`: the actions in order, the last one again and again, or what `script(step)` returns at each step.

    For tests, benchmarks and demonstrations.
    """

    def __init__(self, script: Sequence[str] | Callable[[int], str], tokenizer: Renderer) -> None:
        self._script, self._tokenizer, self._step = script, tokenizer, 0

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        ids = self._tokenizer.encode_action(self._text(self._step))
        self._step += 1
        finish: Literal["stop", "length"] = "stop" if len(ids) <= max_tokens else "length"
        ids = ids[:max_tokens]
        return Generation(ids, [0.0] * len(ids), "script", finish)

    def _text(self, step: int) -> str:
        return self._script(step) if callable(self._script) else self._script[min(step, len(self._script) - 1)]
