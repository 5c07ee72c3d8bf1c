"""A policy that plays written actions."""

from collections.abc import Callable, Sequence
from typing import Literal

from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.tokens.tokenizer import Renderer


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
