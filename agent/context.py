"""The context as a growing tree of message nodes."""

from agent.messages import Message, Prompt
from agent.notepad import State
from agent.policy import Generation
from agent.settings import AgentSettings
from agent.tokens import ChatTokenizer
from agent.trajectory import ROOT, Node, NodeKind


def render_tail(state: State, steps_left: int, tokens_left: int) -> str:
    """Notepad and budget, the last thing before an action. Tokens are rounded down to hundreds: a hint, not a meter."""
    notes = state.notepad.render()
    notepad = f"<notepad>\n{notes}\n</notepad>\n" if notes else ""
    return f"{notepad}<budget>steps {steps_left}, tokens {tokens_left // 100 * 100}</budget>"


def cut_middle(text: str, limit: int) -> str:
    """Head and tail survive, the middle is replaced by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"


class Context:
    """The message tree of one episode.

    The path to `_trunk` is what the policy has in view. `prompt` hangs this step's tail off it; `commit` hangs the sampled action
    off the tail and grows the trunk. Trimming moves the trunk back to the task and keeps the nodes.
    """

    def __init__(self, tokenizer: ChatTokenizer, settings: AgentSettings, system: str, task: str) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self.nodes: list[Node] = []
        top = self._add(ROOT, "system", 0, tokenizer.message("system", system))
        self._task = self._trunk = self._add(top, "task", 0, tokenizer.message("user", task))
        self._tail = ROOT
        self._last: tuple[list[int], list[int]] | None = None
        self._opening = [Message("system", system), Message("user", task)]
        self._turns: list[Message] = []

    def _add(self, parent: int, kind: NodeKind, step: int, ids: list[int]) -> int:
        self.nodes.append(Node(parent=parent, kind=kind, step=step, token_ids=ids))
        return len(self.nodes) - 1

    def _path(self, index: int) -> list[int]:
        runs = []
        while index != ROOT:
            runs.append(self.nodes[index].token_ids)
            index = self.nodes[index].parent
        return [token for run in reversed(runs) for token in run]

    def prompt(self, step: int, state: State) -> tuple[Prompt, int] | None:
        """This step's prompt and the room for its action, or None when the token limit is reached."""
        steps_left = self._settings.max_steps - step
        for trim in (None, self._keep_last_step, self._keep_nothing):
            if trim is not None:
                if self._settings.trim == "none":
                    return None
                trim(step)
            trunk = self._path(self._trunk)
            tokens_left = max(0, self._settings.context_tokens - len(trunk))
            shown = render_tail(state, steps_left, tokens_left)
            tail = self._tokenizer.message("user", shown) + self._tokenizer.generation_prompt()
            room = self._settings.context_tokens - len(trunk) - len(tail)
            if room >= self._settings.action_tokens:
                self._tail = self._add(self._trunk, "tail", step, tail)
                messages = [*self._opening, *self._turns, Message("user", shown)]
                return Prompt(trunk + tail, messages), self._settings.action_tokens
        return None

    def _keep_last_step(self, step: int) -> None:
        self._trunk = self._task
        del self._turns[:-2]
        if self._last is not None:
            action, observation = self._last
            self._trunk = self._add(self._trunk, "action", step - 1, action)
            self._trunk = self._add(self._trunk, "observation", step - 1, observation)

    def _keep_nothing(self, step: int) -> None:
        self._trunk = self._task
        self._turns.clear()

    def sampled(self, step: int, generation: Generation) -> None:
        """Hang the action off this step's tail, ids as the engine returned them."""
        node = Node(
            parent=self._tail,
            kind="sampled",
            step=step,
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            weights_version=generation.weights_version,
        )
        self.nodes.append(node)

    def observe(self, step: int, generation: Generation, observation: str, images: tuple[bytes, ...] = ()) -> None:
        """Grow the trunk by the action as history and its observation, whose PNG `images` only policies that can see get."""
        text = cut_middle(observation, self._settings.observation_chars)
        action = self._tokenizer.history(generation.token_ids)
        seen = self._tokenizer.message("user", f"<output>{text}</output>")
        self._trunk = self._add(self._trunk, "action", step, action)
        self._trunk = self._add(self._trunk, "observation", step, seen)
        self._last = (action, seen)
        said = generation.text if generation.text is not None else self._tokenizer.decode(generation.token_ids)
        self._turns += [Message("assistant", said), Message("user", f"<output>{text}</output>", images)]
