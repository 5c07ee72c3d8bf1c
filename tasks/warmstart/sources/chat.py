"""Demonstrations from conversations: JSON Lines with `messages`, as chat servers take them."""

import json
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import Field

from nbrl.agent.messages import Role
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import ROOT, Node, NodeKind, Status, Trajectory
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.source import Found, Source

ROLES = ("system", "user", "assistant")
KINDS: dict[str, NodeKind] = {"system": "system", "user": "observation", "assistant": "action"}


class ChatDemonstrations(Source):
    """Conversations. Every turn of the assistant is learnt as it stands."""

    kind: Literal["chat"] = Field(description="conversations; every turn of the assistant is learnt as it stands")
    path: Path = Field(description='JSON Lines, each {"messages": [{"role": "user", "content": "..."}, ...]}')

    def check(self) -> None:
        if not self.path.is_file():
            raise ConfigError(f"there are no conversations {self.path}; give a file of JSON Lines")

    def record(self, stage: Stage, seed: int) -> Found:
        """A conversation that is longer than the agent's context is left out."""
        found = []
        with self.path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    found.append(_trajectory(f"{self.path.name}:{number}", self._messages(line, number), stage.tokenizer))
        fitting = [each for each in found if _longest(each) <= stage.agent.context_tokens]
        return Found(fitting, len(found) - len(fitting))

    def _messages(self, line: str, number: int) -> list[tuple[Role, str]]:
        where = f"line {number} of {self.path}"
        try:
            row: Any = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{where} is not JSON: {error}") from error
        messages = row.get("messages") if isinstance(row, dict) else None
        if not isinstance(messages, list) or not messages:
            raise ConfigError(f'{where} has no messages; write {{"messages": [{{"role": "user", "content": "..."}}, ...]}}')
        found = []
        for message in messages:
            role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
            if role not in ROLES or not isinstance(content, str):
                raise ConfigError(f"{where} has a message without a role of {', '.join(ROLES)} and a content that is text")
            found.append((cast(Role, role), content))
        if not any(role == "assistant" for role, _ in found[1:]):
            raise ConfigError(f"{where} has no turn of the assistant after another, so nothing is demonstrated")
        return found


def _trajectory(name: str, messages: list[tuple[Role, str]], tokenizer: ChatTokenizer) -> Trajectory:
    """The turns one after another; each of the assistant's is sampled off a generation prompt, and stands as history then."""
    nodes: list[Node] = []
    trunk, step = ROOT, 0
    before: Role = "assistant"
    for role, content in messages:
        if role == "assistant" and trunk != ROOT:
            sampled = tokenizer.encode_action(content)
            nodes.append(Node(parent=trunk, kind="tail", step=step, token_ids=tokenizer.generation_prompt()))
            nodes.append(Node(parent=len(nodes) - 1, kind="sampled", step=step, token_ids=sampled, logprobs=[0.0] * len(sampled)))
            ids, step = tokenizer.history(sampled), step + 1
        else:
            ids = tokenizer.message(role, content, before)
        nodes.append(Node(parent=trunk, kind=KINDS[role], step=step, token_ids=ids))
        trunk, before = len(nodes) - 1, role
    question = next((content for role, content in messages if role == "user"), "")
    return Trajectory(
        id=name, group=name, sample=0, question=question, ability="", status=Status.ANSWERED, answer=None, nodes=nodes, steps=[]
    )


def _longest(trajectory: Trajectory) -> int:
    return max(len(trajectory.path(place)) for place, node in enumerate(trajectory.nodes) if node.kind == "sampled")
